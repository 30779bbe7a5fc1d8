# SPDX-License-Identifier: Apache-2.0
"""Any text is read without an error, in time linear in it, and equal texts equally."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.recognition.formats import FORMATS
from depcache.recognition.recognise import MAX_TEXT, recognise
from eval.recognise.ordinary import make_prompts
from tests.depcache.recognition.prompts import FIRST, PROMPTS, QUESTIONS

LINES = [
    *(line for make in PROMPTS.values() for message in make(FIRST, QUESTIONS[0])[0][-2:]
      for line in str(message["content"]).split("\n")),
    *(line for prompt in make_prompts(58) for line in prompt.text.split("\n")),
    *(each.mark for each in FORMATS),
    "```", "```json", "~~~", "", "  ", "facts:", "Question: who?", "\ud800", "\0", "---", "[", "]",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(LINES) | st.text(max_size=9), max_size=40)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", " ", ""])


@settings(deadline=None)
@given(TEXTS, ENDS)
def test_any_text_is_read_or_left(lines: list[str], end: str) -> None:
    text = end.join(lines)
    found = recognise(text, deadline_s=None)
    assert found == recognise(text, deadline_s=None)
    for each in found.unread:
        assert 0 <= each.start <= each.stop <= len(text) and each.reason
    if found.outline is None:
        assert found.reason and not found.rows
        return
    outline = found.outline
    assert "".join(outline.pieces(text)) == text[outline.start : outline.stop]
    assert len(found.rows) >= 2
    assert all(a.stop <= b.start for a, b in pairwise(found.rows))
    assert all(outline.start <= row.start < row.stop <= outline.stop for row in found.rows)
    # A chat template may trim the message.
    assert text[: outline.start].strip() or not text[outline.start].isspace()
    assert text[outline.stop :].strip() or not text[outline.stop - 1].isspace()


@settings(deadline=None)
@given(TEXTS)
def test_a_message_is_read_as_its_text(lines: list[str]) -> None:
    text = "\n".join(lines)
    alone = recognise(text, deadline_s=None)
    sent = recognise([{"role": "user", "content": text}], deadline_s=None)
    assert (alone.rows, alone.reason) == (sent.rows, sent.reason)


PIECES = [
    *(each.mark for each in FORMATS),
    "[{", "a -> ", "['a'", "—[", "(', ", "0,\t\"", '0|"', "Node: x\n__node_content_start__\n",
    "```json\n", "```\n", "=== a ===\\n", "- a: b\n", "[1]  a\n", "facts:\nA -> b -> C\n", "\n",
    "?\n", "x", "\ud800", "a -> b -> c\n\nb\n", "-----a-----\nid|", "## Passages\n", "(a -> ",
    "- (score",
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_steps_in_its_square(piece: str) -> None:
    # pytest's own limit is the end of a test that hangs; the first takes about a second.
    for text in (piece * (100_000 // len(piece)), f"{piece}{' ' * 100_000}{piece}"):
        recognise(text, deadline_s=None)
    for text in (piece * (MAX_TEXT // len(piece)), f"{piece}{chr(10) * (MAX_TEXT // 2)}{piece}"):
        found = recognise(text)
        assert found.outline is not None or found.reason
