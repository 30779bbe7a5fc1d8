# SPDX-License-Identifier: Apache-2.0
"""The facts of every format are found whole, and found again where the next question has them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest

from depcache.recognition.recognise import Recognised, recognise
from tests.depcache.recognition.prompts import FIRST, PROMPTS, QUESTIONS, SECOND

BLANK_ENDS = {"arrows": 1, "node blocks": 1, "arrows with text": 1}
"""Rows that may be lost: the last of a section may have fewer blank lines behind it."""


def read(name: str, number: int, newline: str = "\n") -> tuple[Recognised, list[str]]:
    messages, rows = PROMPTS[name]((FIRST, SECOND)[number], QUESTIONS[number])
    for message in messages:
        if message["content"]:
            message["content"] = message["content"].replace("\n", newline)
    rows = [row.replace("\n", newline) for row in rows]
    return recognise(messages, deadline_s=None), rows


def ways(found: Recognised) -> dict[tuple[str, ...], int]:
    """Each element with those above it, to the number of its row."""
    outline = found.outline
    assert outline is not None
    pieces, above = outline.pieces(found.text), []
    parents = outline.parents or (-1,) * outline.num_rows
    every: dict[tuple[str, ...], int] = {}
    for (a, b), parent in zip(pairwise(accumulate(outline.rows, initial=0)), parents, strict=True):
        way = above[parent] if parent >= 0 else ()
        for piece in pieces[a:b]:
            way = (*way, piece)
            every.setdefault(way, len(above))
        above.append(way)
    return every


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", PROMPTS)
def test_every_row_is_found_once_and_in_order(name: str, number: int, newline: str) -> None:
    if newline == "\r\n" and name == "repr arrows":
        pytest.skip("a repr has no ends of lines")
    found, rows = read(name, number, newline)
    texts = [found.text[row.start : row.stop] for row in found.rows]
    assert len(texts) == len(rows), found
    assert [row in text for row, text in zip(rows, texts, strict=True)] == [True] * len(rows)


@pytest.mark.parametrize("name", PROMPTS)
def test_the_text_is_cut_and_not_changed(name: str) -> None:
    found, _ = read(name, 0)
    outline = found.outline
    assert outline is not None and not outline.merge
    assert "".join(outline.pieces(found.text)) == found.text[outline.start : outline.stop]
    assert max(outline.rows) <= 2
    assert found.rows[0].start >= outline.start and found.rows[-1].stop <= outline.stop


@pytest.mark.parametrize("name", PROMPTS)
def test_the_question_and_what_differs_before_the_facts_stay_outside_or_apart(name: str) -> None:
    first, second = read(name, 0)[0], read(name, 1)[0]
    assert first.outline is not None and second.outline is not None
    assert first.outline.message == second.outline.message
    assert first.text[: first.outline.start] == second.text[: second.outline.start]
    for question in QUESTIONS:
        assert question not in first.text[first.outline.start : first.outline.stop]


@pytest.mark.parametrize("name", PROMPTS)
def test_rows_of_both_questions_are_reused(name: str) -> None:
    (first, rows), (second, again) = read(name, 0), read(name, 1)
    known = ways(first)
    shared = set(rows) & set(again)
    reused = {
        row for row in shared if any(row in way[-1] for way in ways(second).keys() & known.keys())
    }
    assert len(shared) >= 3 and len(shared - reused) <= BLANK_ENDS.get(name, 0), shared - reused


@pytest.mark.parametrize("name", ["numbered csv", "json lines", "pipes", "bullets", "tabs"])
def test_what_varies_is_the_last_element_of_a_row(name: str) -> None:
    found, rows = read(name, 0)
    outline = found.outline
    assert outline is not None
    pieces = outline.pieces(found.text)
    stable = [piece for piece in pieces if any(row in piece for row in rows)]
    assert any(piece not in stable for piece in pieces)
    for piece in stable:
        assert not piece.lstrip().startswith(("0,", '{"reference_id"', "[1]"))
        assert "score" not in piece
