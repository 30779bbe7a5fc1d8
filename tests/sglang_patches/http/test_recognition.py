# SPDX-License-Identifier: Apache-2.0
"""A server that finds the facts in plain prompts by itself: `depcache serve --recognise auto`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from depcache.config import Config
from depcache.errors import ConfigError
from depcache.prompt.recompute import Recompute
from depcache.recognition.recognise import recognise
from tests.depcache.recognition.prompts import FIRST, PROMPTS, QUESTIONS, SECOND
from tests.helpers.server import start_server

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def client(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    settings = {"DEPCACHE_RECOGNISE": "auto"}
    with start_server(model_path("llama_gqa"), log=log, environment=settings) as client:
        yield client


def ask(client: httpx.Client, messages: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, "max_tokens": 3, "temperature": 0, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


def report(reply: dict[str, Any]) -> dict[str, Any]:
    return reply["metadata"]["depcache"]


@pytest.mark.parametrize("name", list(PROMPTS))
def test_a_frameworks_prompt_is_answered_as_its_outline_sent_by_hand(client, name: str) -> None:
    first, _ = PROMPTS[name](FIRST, QUESTIONS[0])
    second, _ = PROMPTS[name](SECOND, QUESTIONS[1])
    assert client.post("/depcache/flush", params={"timeout": 60}).status_code == 200
    ask(client, first)
    warm = ask(client, second)
    found = recognise(second)
    assert found.outline is not None
    assert sum(report(warm)["recognised"].values()) == len(found.rows) >= 2
    assert report(warm)["shared"] > 0
    assert "visibility" in report(warm)["differs"]
    by_hand = ask(client, second, custom_params=found.outline.to_params("tree"))
    assert report(by_hand)["missed"] == 0 and "recognised" not in report(by_hand)
    assert client.post("/depcache/flush", params={"timeout": 60}).status_code == 200
    cold = ask(client, second)
    assert report(cold)["missed"] > report(warm)["missed"]
    assert text_of(cold) == text_of(warm) == text_of(by_hand)


PLAIN = {
    "a greeting": [{"role": "user", "content": "Hello, who are you?"}],
    "one arrow": [{"role": "user", "content": "A -> b -> C\nIs that an arrow?"}],
    "code": [{"role": "user", "content": "```c\np -> next -> prev;\nq -> next -> prev;\n```\nOk?"}],
    "facts of its own": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "A -> r -> B\nC -> r -> D\n"},
        {"role": "user", "content": "Thanks"},
    ],
}


@pytest.mark.parametrize("name", list(PLAIN))
def test_a_prompt_without_facts_is_untouched(client, served, name: str) -> None:
    """Promise P5, with recognition on: as on a server that looks for nothing."""
    reply, stock = ask(client, PLAIN[name]), ask(served.client, PLAIN[name])
    assert "depcache" not in (reply["metadata"] or {})
    assert reply["choices"] == stock["choices"]
    assert reply["usage"]["prompt_tokens"] == stock["usage"]["prompt_tokens"]
    refused = client.post("/depcache/explain", json={"messages": PLAIN[name]})
    assert refused.status_code == 400 and "no dependency data" in refused.json()["message"]


def test_what_cannot_be_combined_with_facts_goes_on_as_it_came(client, served) -> None:
    messages, _ = PROMPTS["arrows"](FIRST, QUESTIONS[0])
    text = messages[-1]["content"]
    params = {"max_new_tokens": 2, "temperature": 0}
    body = {"text": text, "sampling_params": params, "return_logprob": True}
    body["logprob_start_len"] = 0  # in the context, whose rows are in no order
    reply, stock = (each.post("/generate", json=body).json() for each in (client, served.client))
    assert "depcache" not in reply["meta_info"]
    assert reply["output_ids"] == stock["output_ids"]
    assert reply["meta_info"]["prompt_tokens"] == stock["meta_info"]["prompt_tokens"]
    chat = {"logprobs": True, "custom_params": {"mine": 1}}
    assert text_of(ask(client, messages, **chat))


def test_completions_and_generate_are_read_too(client) -> None:
    messages, _ = PROMPTS["arrows"](SECOND, QUESTIONS[1])
    text = messages[-1]["content"]
    body = {"model": "m", "prompt": text, "max_tokens": 2, "temperature": 0}
    reply = client.post("/v1/completions", json=body).json()
    assert report(reply)["recognised"] and report(reply)["missed"] > 0
    params = {"max_new_tokens": 2, "temperature": 0}
    many = client.post("/generate", json={"text": [text, "Hello"], "sampling_params": params})
    with_facts, without = (each["meta_info"] for each in many.json())
    assert with_facts["depcache"]["missed"] == 0 and with_facts["depcache"]["recognised"]
    assert "depcache" not in without


def test_a_question_about_a_plain_prompt_shows_what_is_found(client) -> None:
    messages, rows = PROMPTS["lists"](FIRST, QUESTIONS[0])
    table = client.post("/depcache/explain", json={"messages": messages}).json()["table"]
    shown = "".join(row["text"] for row in table)
    assert all(row in shown for row in rows)


def test_a_stream_is_reported_as_well(client) -> None:
    messages, _ = PROMPTS["arrows"](FIRST, QUESTIONS[0])
    body = {"model": "m", "messages": messages, "max_tokens": 2, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        text = "".join(response.iter_text())
    assert '"recognised": {"arrows": 6}' in text


def test_a_server_for_a_model_as_it_comes_computes_a_share_of_facts_again(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    """`depcache serve MODEL --recognise auto --recompute 0.05`; the client knows nothing."""
    settings = {"DEPCACHE_RECOGNISE": "auto", "DEPCACHE_RECOMPUTE": "0.05"}
    model, log = model_path("llama_gqa"), tmp_path / "log.txt"
    with start_server(model, log=log, environment=settings) as client:
        replies: list[dict[str, Any]] = []
        for facts, question in ((FIRST, QUESTIONS[0]), (FIRST[::-1], QUESTIONS[1])):
            messages, _ = PROMPTS["arrows"](facts, question)
            replies += [ask(client, messages), ask(client, messages)]
        told = [report(reply) for reply in replies]
        assert all(each["recognised"] == {"arrows": len(FIRST)} for each in told)
        fused = [each for each in told if each["see"] == "fused"]
        assert fused and all(each["recompute"] == 0.05 for each in fused)
        assert "visibility" in fused[-1]["differs"]
        found = recognise(messages)
        assert found.outline is not None
        params = found.outline.to_params("sequential") | Recompute(0.05).to_params()
        assert text_of(ask(client, messages, custom_params=params)) == text_of(replies[-1])
        refused = ask(client, messages, custom_params={"depcache_match": False})
        assert "depcache" not in (refused["metadata"] or {})


@pytest.mark.parametrize(
    ("setting", "names"),
    [("off", ()), ("", ()), ("auto", None), ("arrows, dicts", ["arrows", "dicts"])],
)
def test_the_setting_names_recognisers(setting: str, names: Any) -> None:
    from sglang_patches.requests.recognition import read_names

    assert read_names(setting) == names


def test_an_unknown_recogniser_is_refused_at_the_start() -> None:
    from sglang_patches.requests.recognition import set_recognisers

    with pytest.raises(ConfigError, match="setting recognise = 'hieroglyphs'"):
        set_recognisers(Config(recognise="hieroglyphs"))
