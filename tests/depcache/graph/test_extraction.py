# SPDX-License-Identifier: Apache-2.0
"""Building a graph from documents: chunks, calls, retries, what is bad, going on after a stop."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import ConfigError, PromptError, ServerError
from depcache.graph.extraction import (
    BadOutputError,
    Chunk,
    Extractor,
    OpenAIExtractor,
    extract_all,
    make_chunks,
)

FACT = {"head": "Ann", "relation": "wrote", "tail": "Blue"}


def count(text: str) -> int:
    return len(text.split())


@given(text=st.text(alphabet="ab .!?\n\u3002,", max_size=300), size=st.integers(1, 12))
def test_chunks_are_small_and_lose_nothing_but_blanks(text: str, size: int) -> None:
    chunks = list(make_chunks([("d", text)], max_tokens=size, count_tokens=count))
    assert all(chunk.text.strip() for chunk in chunks)
    assert all(count(chunk.text) <= size for chunk in chunks)
    assert "".join("".join(chunk.text.split()) for chunk in chunks) == "".join(text.split())


def test_chunks_end_with_a_sentence() -> None:
    text = "One two three. Four five six! " * 200
    chunks = list(make_chunks([("a", text), ("b", "  "), ("c", "Short")], max_tokens=50))
    assert all(chunk.text.rstrip()[-1] in ".!" for chunk in chunks[:-1])
    assert "".join(chunk.text for chunk in chunks[:-1]) == text
    assert chunks[-1] == Chunk("c", "Short")
    with pytest.raises(ConfigError, match="max_tokens"):
        list(make_chunks([("a", text)], max_tokens=0))


def answer(content: object) -> httpx.Response:
    text = content if isinstance(content, str) else json.dumps(content)
    return httpx.Response(200, json={"choices": [{"message": {"content": text}}]})


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
    with pytest.raises(ServerError, match="goes on where it stopped"):
        make_extractor([httpx.Response(503)] * 3).extract("x")
    with pytest.raises(PromptError, match="HTTP 400"):
        make_extractor([httpx.Response(400, text="no")]).extract("x")


@pytest.mark.parametrize(
    "bad",
    [
        answer("no JSON"),
        answer({"triples": [{"head": "a"}]}),
        answer({"facts": []}),
        answer({"triples": [{**FACT, "tail": 3}]}),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json=[]),
        httpx.Response(200, text="<html>"),
    ],
)
def test_output_that_is_no_list_of_triples_is_told_apart(bad: httpx.Response) -> None:
    with pytest.raises(BadOutputError):
        make_extractor([bad]).extract("x")


class Scripted(Extractor):
    """Gives what the script says for a text; remembers what it was asked."""

    def __init__(self, script: dict) -> None:
        self.script = script
        self.asked: list[str] = []

    def extract(self, text: str) -> list:
        self.asked.append(text)
        found = self.script[text]
        if isinstance(found, Exception):
            raise found
        return found


def test_bad_chunks_and_triples_are_left_out_and_counted() -> None:
    extractor = Scripted(
        {
            "one": [(" Ann ", "wrote", "Blue"), ("", "x", "y"), ("a", "b"), ("a", None, "c")],
            "two": BadOutputError("nonsense"),
            "three": [("Ann", "wrote", "Blue"), ("Bob", "is", "new")],
        }
    )
    chunks = [Chunk("d", text) for text in ("one", "two", "three", "one")]
    seen: list[int] = []
    result = extract_all(chunks, extractor, num_workers=2, on_progress=seen.append)
    assert result.triples == [("Ann", "wrote", "Blue"), ("Bob", "is", "new")]
    assert (result.num_chunks, result.num_bad, result.num_dropped) == (4, 1, 3)
    assert len(result.problems) == 4 and "d: nonsense" in result.problems
    assert seen[-1] == 4
    # A bad answer is asked for twice, equal texts once.
    assert sorted(extractor.asked) == ["one", "three", "two", "two"]


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    chunks = [Chunk("d", text) for text in ("one", "two", "three")]
    script = {"one": [("a", "r", "b")], "two": ServerError("gone"), "three": [("c", "r", "d")]}
    with pytest.raises(ServerError):
        extract_all(chunks, Scripted(script), state=state, num_workers=1)
    with state.open("a") as file:
        file.write('{"chunk": "half a li')  # killed while writing
    again = Scripted({**script, "two": [("b", "r", "c")]})
    result = extract_all(chunks, again, state=state)
    assert sorted(again.asked) == ["three", "two"]
    assert result.triples == [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d")]
    assert result.num_resumed == 1
    last = Scripted({})
    assert extract_all(chunks, last, state=state).triples == result.triples
    assert last.asked == []


def test_a_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state"):
        extract_all([Chunk("d", "x")], Scripted({"x": []}), state=tmp_path / "no" / "s.jsonl")
    with pytest.raises(ConfigError, match="num_workers"):
        extract_all([], Scripted({}), num_workers=0)
