# SPDX-License-Identifier: Apache-2.0
"""The bodies of a soak's good requests: one prompt on one of SGLang's routes, or on one of ours."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.soak.calls import answer_of_choice, answer_of_generate, read_generated
from eval.soak.judge import Answer
from eval.soak.prompts import Prompt

LENGTHS = (1, 2, 4, 8, 8, 24, 60)
"""Tokens of an answer."""
TENANTS = (None, None, None, "a", "b")
_NUM_FRESH = 100_000


@dataclass(frozen=True)
class Request:
    """One question. `num_choices` answers of `num_new` tokens come back."""

    prompt: Prompt
    route: str
    body: dict[str, Any]
    num_new: int
    num_choices: int = 1

    @property
    def kind(self) -> str:
        """What it is counted as."""
        words = [self.route, self.prompt.kind, self.prompt.form]
        return " ".join([*words, "stream"] if self.is_stream else words)

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def can_be_judged(self) -> bool:
        """Streams of the OpenAI routes do not name their tokens."""
        return self.route == "/generate" or not self.is_stream

    def read(self, text: str) -> list[tuple[Answer, Mapping[str, Any] | None]]:
        """The answers, and DepCache's report with each. ValueError for what is none."""
        if not self.can_be_judged:
            if "data: [DONE]" not in text or '"error"' in text:
                raise ValueError("the stream has no good end")
            return []
        try:
            if self.route == "/generate":
                results = read_generated(text, is_stream=self.is_stream)
                found = [
                    (answer_of_generate(one, self.num_new), one["meta_info"].get("depcache"))
                    for one in results
                ]
            else:
                found = self._read_choices(text)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{error!r} in {text[:500]}") from error
        if len(found) != self.num_choices:
            raise ValueError(f"{self.num_choices} answers were asked for and {len(found)} came")
        return found

    def _read_choices(self, text: str) -> list[tuple[Answer, Mapping[str, Any] | None]]:
        import json

        body = json.loads(text)
        report = (body.get("metadata") or {}).get("depcache")
        for choice in body["choices"]:
            said = choice.get("prompt_token_ids")
            if said is not None and said != self.prompt.input_ids:
                raise ValueError(f"the prompt became {said}, not {self.prompt.input_ids}")
        return [(answer_of_choice(choice, self.num_new), report) for choice in body["choices"]]


def draw_request(rng: random.Random, prompt: Prompt, num_new: int | None = None) -> Request:
    """A greedy request about a prompt: some route that takes it, some tenant, a stream or not."""
    num_new = rng.choice(LENGTHS) if num_new is None else num_new
    # One tenant in ten has never been seen: to it everything is new.
    tenant = rng.choice(TENANTS) if rng.random() < 0.9 else f"new {rng.randrange(_NUM_FRESH)}"
    stream = rng.random() < 0.4
    if prompt.form == "chat":
        route = "/v1/chat/completions"
    else:
        route = rng.choice(("/generate", "/generate", "/v1/completions"))
    if route == "/generate":
        num_choices = 2 if rng.random() < 0.1 else 1
        body = _generate_body(prompt, num_new, num_choices)
        if tenant is not None:
            body["extra_key"] = tenant
        return Request(prompt, route, body | {"stream": stream}, num_new, num_choices)
    body = _openai_body(prompt, num_new)
    if tenant is not None:
        body[rng.choice(("extra_key", "cache_salt"))] = tenant
    if stream:
        body |= {"stream": True, "return_token_ids": False}
    return Request(prompt, route, body, num_new)


def about(prompt: Prompt) -> dict[str, Any]:
    """The body of explain, prefetch and invalidate."""
    if prompt.form == "chat":
        return {"messages": prompt.messages, "custom_params": prompt.custom_params}
    return {**_source(prompt), "sampling_params": {"custom_params": prompt.custom_params}}


def _generate_body(prompt: Prompt, num_new: int, num_choices: int) -> dict[str, Any]:
    params: dict[str, Any] = {"max_new_tokens": num_new, "temperature": 0, "ignore_eos": True}
    if prompt.custom_params is not None:
        params["custom_params"] = prompt.custom_params
    params["n"] = num_choices
    logprobs = {"return_logprob": True, "top_logprobs_num": 2}
    return {**_source(prompt), "sampling_params": params, **logprobs}


def _openai_body(prompt: Prompt, num_new: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "max_tokens": num_new, "temperature": 0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    if prompt.form == "chat":
        body |= {"messages": prompt.messages, "logprobs": True}
    else:
        body |= {"prompt": next(iter(_source(prompt).values())), "logprobs": 1}
    if prompt.custom_params is not None:
        body["custom_params"] = prompt.custom_params
    return body


def _source(prompt: Prompt) -> dict[str, Any]:
    return {"input_ids": prompt.input_ids} if prompt.text is None else {"text": prompt.text}
