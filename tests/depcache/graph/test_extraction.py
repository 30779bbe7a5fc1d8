# SPDX-License-Identifier: Apache-2.0
"""Building a graph from documents: chunks, what is bad, going on after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import ConfigError, ServerError
from depcache.graph.extraction import (
    BadOutputError,
    Chunk,
    CutOffError,
    Extractor,
    extract_all,
    make_chunks,
)


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


def test_chunks_that_were_left_out_are_asked_about_again_by_the_next_run(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    chunks = [Chunk("d", text) for text in ("one", "two", "three")]
    bad = {"two": BadOutputError("nonsense"), "three": CutOffError("cut")}
    first = Scripted({"one": [("a", "r", "b")], **bad})
    result = extract_all(chunks, first, state=state, num_workers=1)
    assert (result.num_bad, result.num_resumed, result.num_retried) == (2, 0, 0)
    # What was cut would be cut again at once; what is nonsense may be sense the next time.
    assert first.asked == ["one", "two", "two", "three"]
    second = Scripted({"two": [("b", "r", "c")], "three": CutOffError("cut")})
    result = extract_all(chunks, second, state=state)
    assert sorted(second.asked) == ["three", "two"]
    assert (result.num_bad, result.num_resumed, result.num_retried) == (1, 1, 2)
    assert result.triples == [("a", "r", "b"), ("b", "r", "c")]
    assert result.problems == ["d: cut"]
    third = Scripted({"three": [("c", "r", "d")]})
    result = extract_all(chunks, third, state=state)
    assert third.asked == ["three"]
    assert (result.num_bad, result.num_resumed, result.num_retried) == (0, 2, 1)
    last = extract_all(chunks, Scripted({}), state=state)
    assert (last.num_resumed, last.num_retried, last.problems) == (3, 0, [])


def test_a_state_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state"):
        extract_all([Chunk("d", "x")], Scripted({"x": []}), state=tmp_path / "no" / "s.jsonl")
    with pytest.raises(ConfigError, match="num_workers"):
        extract_all([], Scripted({}), num_workers=0)
