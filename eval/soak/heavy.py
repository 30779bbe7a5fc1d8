# SPDX-License-Identifier: Apache-2.0
"""Requests that are legal, or refused, and as heavy as one request can be.

Each has a twin: what stock SGLang is asked instead, a plain prompt of as many tokens, or the same
text without dependency data. What the twin costs others is not ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import render
from depcache.prompt.tokenization import PromptTokenizer
from depcache.prompt.wire_forms import MAX_PATHS_BYTES

CONTEXT_TOKENS = 8192
"""The context of depcache-tiny."""
_ROOM = 64
NUM_ENTITIES = 300
SMALL_NODES = "one token a segment"
"""Makes thousands of nodes, for what walks the tree."""
_PROMPT_ROUTES = ("explain", "prefetch", "invalidate")
MANY_PATHS = 100_000
_SHORT = {"max_new_tokens": 1, "temperature": 0}


@dataclass(frozen=True)
class Heavy:
    """`content` and `twin` are JSON bodies; `twin_route` is where the twin goes, "" without one."""

    name: str
    method: str
    route: str
    content: str | None = None
    twin_route: str = ""
    twin: str | None = None


Paths = list[list[str]]


def make_paths(rng: random.Random, num_entities: int, num_paths: int) -> Paths:
    """Paths of entities that nobody has heard of."""
    salt = rng.randrange(1000)
    return [
        [f"{i} {salt}", "abcdefghijklmnop"[j], f"{j}"]
        for i in range(num_entities)
        for j in range(num_paths)
    ]


class Heavies:
    """Makes each of them, anew every time: what was asked before would be cached."""

    def __init__(self, tokenizer: Any) -> None:
        self._pieces = PromptTokenizer(tokenizer)
        self._num_tokens: dict[int, int] = {}

    def all(self) -> dict[str, Callable[[random.Random], Heavy]]:
        """All heavy requests by name."""
        explain, prefetch, invalidate = (f"/depcache/{n}" for n in _PROMPT_ROUTES)
        made: dict[str, Callable[[random.Random], Heavy]] = {
            "300 entities, /generate": self._largest_text,
            "300 entities, chat": self._largest_chat,
            "largest tree of ids": self._largest_ids,
            SMALL_NODES: self._smallest_segments,
        }
        for route in (explain, prefetch, invalidate):
            made[f"{route}, 300 entities"] = _on(route, self._largest_text)
            made[f"{route}, {SMALL_NODES}"] = _on(route, self._smallest_segments)
        made |= {
            # What is to be refused is read by the same code for all three.
            f"{explain}, {MANY_PATHS:,} paths": _on(explain, self._many_paths, has_twin=True),
            f"{explain}, deeply nested": _on(explain, self._nested, has_twin=True),
            f"{explain}, 4 MiB of text": _on(explain, self._long_text, has_twin=True),
            f"{MANY_PATHS:,} paths, /generate": self._many_paths,
            f"{MANY_PATHS:,} paths, chat": self._many_paths_chat,
            f"{MANY_PATHS:,} empty paths": self._empty_paths,
            "one path of 4 MiB": self._long_name,
            "deeply nested paths": self._nested,
            "deeply nested body": self._nested_body,
            "4 MiB of text behind the facts": self._long_text,
            "4 MiB of text behind the facts, chat": self._long_text_chat,
            "a million segments": self._million_segments,
            "a million segments, chat": self._million_segments_chat,
            "a million token ids": self._million_ids,
            "a million numbers of somebody else": self._others_params,
            "the whole tree": lambda rng: Heavy(
                "the whole tree", "GET", "/depcache/tree?limit=10000"
            ),
            "the whole tree, dot": lambda rng: Heavy(
                "the whole tree, dot", "GET", "/depcache/tree?limit=10000&format=dot"
            ),
            "stats": lambda rng: Heavy("stats", "GET", "/depcache/stats"),
            "persist": lambda rng: Heavy("persist", "POST", "/depcache/persist"),
        }
        return made

    # -- as long as the context ------------------------------------------------------------------

    def _largest_text(self, rng: random.Random) -> Heavy:
        paths, num_tokens = self._fitting(rng)
        prompt = render(paths, "Who?", system="")
        text = f"Facts:{prompt.flat_text}\nWho?"
        body = _generate(prompt.params_in(text), text=text)
        return Heavy(
            "300 entities", "POST", "/generate", json.dumps(body), *_plain(rng, num_tokens)
        )

    def _largest_chat(self, rng: random.Random) -> Heavy:
        paths, num_tokens = self._fitting(rng)
        prompt = render(paths, "Who?")
        body = _chat(prompt.messages, prompt.extra_body["custom_params"])
        twin = _plain(rng, num_tokens)
        return Heavy("300 entities, chat", "POST", "/v1/chat/completions", json.dumps(body), *twin)

    def _largest_ids(self, rng: random.Random) -> Heavy:
        return _ids(rng, "largest tree of ids", 30)

    def _smallest_segments(self, rng: random.Random) -> Heavy:
        return _ids(rng, SMALL_NODES, 1)

    def _fitting(self, rng: random.Random) -> tuple[Paths, int]:
        """Paths about 300 entities that just fit into the context, and their tokens."""
        best: tuple[Paths, int] = ([], 0)
        for count in range(1, 16):
            paths = make_paths(rng, NUM_ENTITIES, count)
            prompt = DepPrompt.from_paths(paths, tokenizer=self._pieces, system="F", task="\nWho?")
            if prompt.num_tokens > CONTEXT_TOKENS - 2 * _ROOM:
                break
            best = (paths, prompt.num_tokens)
        return best

    # -- to be refused -----------------------------------------------------------------------------

    def _many_paths(self, rng: random.Random) -> Heavy:
        text, wire = _short_paths(rng, MANY_PATHS)
        return _text("many paths", text, wire)

    def _many_paths_chat(self, rng: random.Random) -> Heavy:
        text, wire = _short_paths(rng, MANY_PATHS, 0)
        return _text_chat("many paths, chat", text, wire)

    def _empty_paths(self, rng: random.Random) -> Heavy:
        wire = {"depcache_version": 1, "depcache_paths": json.dumps([[]] * MANY_PATHS)}
        return _text("empty paths", "Facts:\na -> b\nWho?", wire)

    def _long_name(self, rng: random.Random) -> Heavy:
        name = "word " * (MAX_PATHS_BYTES // 5 - 20)
        prompt = render([[name + "end", "is", f"long {rng.random()}"]], "Who?")
        text = f"Facts:{prompt.flat_text}\nWho?"
        return _text("one path of 4 MiB", text, prompt.params_in(text))

    def _nested(self, rng: random.Random) -> Heavy:
        wire = {"depcache_version": 1, "depcache_paths": "[" * 10**6 + "]" * 10**6}
        return _text("deeply nested paths", "Facts:\na -> b\nWho?", wire)

    def _nested_body(self, rng: random.Random) -> Heavy:
        deep = "[" * 10**5 + "]" * 10**5
        content = '{"text": "a", "sampling_params": {"custom_params": {"depcache_version": %s}}}'
        twin = '{"text": "a", "sampling_params": {"custom_params": {"other": %s}}}'
        return Heavy(
            "deeply nested body", "POST", "/generate", content % deep, "/generate", twin % deep
        )

    def _long_text(self, rng: random.Random) -> Heavy:
        prompt = render([["a", "b", f"c {rng.random()}"]], "Who?")
        text = f"Facts:{prompt.flat_text}\n" + "Who is it then? " * (4 * 2**20 // 16)
        return _text("4 MiB of text", text, prompt.params_in(text))

    def _long_text_chat(self, rng: random.Random) -> Heavy:
        prompt = render([["a", "b", f"c {rng.random()}"]], "Who?")
        text = f"Facts:{prompt.flat_text}\n" + "Who is it then? " * (4 * 2**20 // 16)
        return _text_chat("4 MiB of text, chat", text, prompt.params_in(text, 0))

    def _million_segments(self, rng: random.Random) -> Heavy:
        wire = _structure(4, [1] * 10**6, [-1] * 10**6)
        ids = _random_ids(rng, 8000)
        body = {"input_ids": ids, "sampling_params": _SHORT | {"custom_params": wire}}
        return Heavy("a million segments", "POST", "/generate", json.dumps(body), *_others(ids))

    def _million_segments_chat(self, rng: random.Random) -> Heavy:
        wire = _structure(4, [1] * 10**6, [-1] * 10**6)
        ids = _random_ids(rng, 8000)
        body = _chat([{"role": "user", "content": "x"}], wire) | {"input_ids": ids}
        route = "/v1/chat/completions"
        return Heavy("a million segments, chat", "POST", route, json.dumps(body), *_others(ids))

    def _million_ids(self, rng: random.Random) -> Heavy:
        ids = _random_ids(rng, 10**6)
        wire = _structure(4, [len(ids) - 10], [-1])
        body = {"input_ids": ids, "sampling_params": _SHORT | {"custom_params": wire}}
        twin = json.dumps({"input_ids": ids, "sampling_params": _SHORT})
        return Heavy("a million ids", "POST", "/generate", json.dumps(body), "/generate", twin)

    def _others_params(self, rng: random.Random) -> Heavy:
        ids = _random_ids(rng, 40)
        wire = _structure(4, [10, 10], [-1, -1]) | {"other": [0] * 10**6}
        body = {"input_ids": ids, "sampling_params": _SHORT | {"custom_params": wire}}
        return Heavy("others' numbers", "POST", "/generate", json.dumps(body), *_others(ids))


def _on(
    route: str, make: Callable[[random.Random], Heavy], *, has_twin: bool = False
) -> Callable[[random.Random], Heavy]:
    """The same prompt for one of our routes; they run nothing, so what runs is no twin of it."""

    def made(rng: random.Random) -> Heavy:
        heavy = make(rng)
        twin = (heavy.twin_route, heavy.twin) if has_twin else ("", None)
        return Heavy(heavy.name, "POST", route, heavy.content, *twin)

    return made


def _ids(rng: random.Random, name: str, segment_len: int) -> Heavy:
    """Trees as large as the context: up to 2,000 roots side by side, a chain below each."""
    count = (CONTEXT_TOKENS - 2 * _ROOM) // segment_len
    num_roots = min(count, 2000)
    tokens, lens, parents = _random_ids(rng, 4), [], []
    for root in range(num_roots):
        for number in range(root, count, num_roots):
            parents.append(-1 if number == root else len(lens) - 1)
            lens.append(segment_len)
            tokens += [100 + root, *_random_ids(rng, segment_len - 1)]
    tokens += _random_ids(rng, 3)
    wire = _structure(4, lens, parents)
    body = {"input_ids": tokens, "sampling_params": _SHORT | {"custom_params": wire}}
    return Heavy(name, "POST", "/generate", json.dumps(body), *_plain(rng, len(tokens)))


def _text(name: str, text: str, wire: dict[str, Any]) -> Heavy:
    twin = json.dumps({"text": text, "sampling_params": _SHORT})
    return Heavy(
        name, "POST", "/generate", json.dumps(_generate(wire, text=text)), "/generate", twin
    )


def _text_chat(name: str, text: str, wire: dict[str, Any]) -> Heavy:
    route, messages = "/v1/chat/completions", [{"role": "user", "content": text}]
    twin = _chat(messages, None)
    return Heavy(name, "POST", route, json.dumps(_chat(messages, wire)), route, json.dumps(twin))


def _generate(wire: dict[str, Any], **source: Any) -> dict[str, Any]:
    return {**source, "sampling_params": _SHORT | {"custom_params": wire}}


def _chat(messages: list[dict[str, str]], wire: dict[str, Any] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 1, "temperature": 0}
    return body if wire is None else body | {"custom_params": wire}


def _plain(rng: random.Random, num_tokens: int) -> tuple[str, str]:
    """Route and body of a plain prompt of so many tokens."""
    ids = _random_ids(rng, num_tokens)
    return "/generate", json.dumps({"input_ids": ids, "sampling_params": _SHORT})


def _others(ids: list[int]) -> tuple[str, str]:
    """Route and body of a plain prompt with a million numbers in `custom_params`."""
    params = _SHORT | {"custom_params": {"other": [0] * 10**6, "another": [-1] * 10**6}}
    return "/generate", json.dumps({"input_ids": ids, "sampling_params": params})


def _short_paths(
    rng: random.Random, count: int, message: int | None = None
) -> tuple[str, dict[str, Any]]:
    salt = rng.randrange(1000)
    prompt = render([[f"{salt}{i}", "r", "b"] for i in range(count)], "Who?")
    text = f"Facts:{prompt.flat_text}\nWho?"
    return text, prompt.params_in(text, message)


def _structure(system_len: int, lens: list[int], parents: list[int]) -> dict[str, Any]:
    return {
        "depcache_version": 1,
        "depcache_system_len": system_len,
        "depcache_segment_lens": lens,
        "depcache_segment_parents": parents,
    }


def _random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 3000) for _ in range(count)]
