# SPDX-License-Identifier: Apache-2.0
"""A language model as an extractor: the form of its answers, retries, refusals, what is bad."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from depcache.errors import PromptError, ServerError
from depcache.graph.extraction import BadOutputError, CutOffError
from depcache.graph.openai_extractor import OpenAIExtractor

FACT = {"head": "Ann", "relation": "wrote", "tail": "Blue"}


def answer(content: object, finish_reason: str = "stop") -> httpx.Response:
    text = content if isinstance(content, str) else json.dumps(content)
    choice = {"message": {"content": text}, "finish_reason": finish_reason}
    return httpx.Response(200, json={"choices": [choice]})


def make_extractor(replies: list, seen: list | None = None, **options: object) -> OpenAIExtractor:
    def handle(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    client = httpx.Client(transport=httpx.MockTransport(handle))
    return OpenAIExtractor("http://x/v1/", http_client=client, delays_s=(0.0, 0.0), **options)  # pyright: ignore


def form_of(request: httpx.Request) -> str | None:
    return json.loads(request.content).get("response_format", {}).get("type")


def test_the_model_is_held_to_a_schema() -> None:
    seen: list[httpx.Request] = []
    extractor = make_extractor([answer({"triples": [FACT]})], seen, model="m", api_key="k")
    assert extractor.extract("Ann wrote Blue.") == [("Ann", "wrote", "Blue")]
    assert str(seen[0].url) == "http://x/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer k"
    body = json.loads(seen[0].content)
    assert body["model"] == "m" and body["messages"][1]["content"] == "Ann wrote Blue."
    form = body["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["strict"] is True
    schema = form["json_schema"]["schema"]
    assert schema["required"] == ["triples"] and schema["additionalProperties"] is False


def test_a_busy_server_is_asked_again_and_one_that_stays_away_stops_the_run() -> None:
    busy = httpx.Response(429, headers={"retry-after": "0"})
    replies = [busy, httpx.ConnectError("down"), answer({"triples": []})]
    assert make_extractor(replies).extract("x") == []
    with pytest.raises(ServerError, match="progress is kept"):
        make_extractor([httpx.Response(503)] * 3).extract("x")


@pytest.mark.parametrize("status", [400, 422, 501])
def test_a_server_without_schemas_is_asked_in_words_and_that_is_found_out_once(status: int) -> None:
    seen: list[httpx.Request] = []
    refused = httpx.Response(status, text="no response_format")
    good = answer({"triples": [FACT]})
    extractor = make_extractor([refused, refused, good, good, good], seen)
    assert extractor.form is None
    for _ in range(3):
        assert extractor.extract("x") == [("Ann", "wrote", "Blue")]
    assert list(map(form_of, seen)) == ["json_schema", "json_object", None, None, None]
    assert extractor.form == "text"
    # What to write is said in words as well.
    assert '{"triples": [{"head"' in json.loads(seen[-1].content)["messages"][0]["content"]

    seen.clear()
    halfway = make_extractor([refused, good, good], seen)
    assert halfway.extract("x") == halfway.extract("y")
    assert list(map(form_of, seen)) == ["json_schema", "json_object", "json_object"]


def test_threads_find_out_together_what_the_server_takes() -> None:
    lock = threading.Lock()
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        with lock:
            seen.append(form_of(request))
        if form_of(request) is not None:
            return httpx.Response(400, text="no")
        return answer({"triples": []})

    client = httpx.Client(transport=httpx.MockTransport(handle))
    extractor = OpenAIExtractor("http://x", http_client=client)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(extractor.extract, "abcdefgh" * 4)) == [[]] * 32
    assert len(seen) == 32 + 2 and seen.count(None) == 32


def test_a_refusal_that_no_form_mends_is_told_as_it_came_first() -> None:
    seen: list[httpx.Request] = []
    refusals = [httpx.Response(400, text=text) for text in ("too long", "b", "c")]
    extractor = make_extractor([*refusals, answer({"triples": []}), refusals[1]], seen)
    with pytest.raises(PromptError, match=r"HTTP 400: .*too long"):
        extractor.extract("x")
    assert extractor.form is None
    # A server that has taken the schema means something else when it refuses.
    assert extractor.extract("y") == [] and extractor.form == "json_schema"
    with pytest.raises(PromptError, match=r"HTTP 400: .*b"):
        extractor.extract("z")
    assert len(seen) == 5
    with pytest.raises(PromptError, match="HTTP 401"):
        make_extractor([httpx.Response(401, text="no key")]).extract("x")


def test_an_answer_that_was_cut_says_so() -> None:
    cut = answer('{"triples": [{"head": "Ann", "rel', "length")
    with pytest.raises(CutOffError, match=r"cut at --max-tokens 7: raise it"):
        make_extractor([cut], max_tokens=7).extract("x")
    # One that is whole all the same is good.
    assert make_extractor([answer({"triples": [FACT]}, "length")]).extract("x")


def test_json_in_a_fence_or_a_sentence_is_read() -> None:
    text = json.dumps({"triples": [FACT]})
    for content in (f"```json\n{text}\n```", f"Here it is: {text} That is all."):
        assert make_extractor([answer(content)]).extract("x") == [("Ann", "wrote", "Blue")]


@pytest.mark.parametrize(
    "bad",
    [
        answer("no JSON"),
        answer({"triples": [{"head": "a"}]}),
        answer({"facts": []}),
        answer({"triples": [{**FACT, "tail": 3}]}),
        httpx.Response(200, json={"choices": [{"message": {"content": None}}]}),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json=[]),
        httpx.Response(200, text="<html>"),
    ],
)
def test_output_that_is_no_list_of_triples_is_told_apart(bad: httpx.Response) -> None:
    with pytest.raises(BadOutputError):
        make_extractor([bad]).extract("x")
