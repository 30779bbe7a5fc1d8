# SPDX-License-Identifier: Apache-2.0
"""Which message is read, where an outline begins and ends, and what is left alone."""

from __future__ import annotations

import pytest

import depcache
from depcache import PromptError, Recogniser, recognise, recognisers, register_recogniser
from depcache.recognition import table
from depcache.recognition.recognise import MAX_TEXT
from depcache.recognition.rows import MAX_ROW

ROWS = "Ada -> born in -> Mire\nMire -> lies on -> Linn\nAda -> won -> Cup\n"


def user(text: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


def context(prompt: object) -> str:
    found = recognise(prompt, deadline_s=None)  # pyright: ignore[reportArgumentType]
    if found.outline is None:
        return ""
    return found.text[found.outline.start : found.outline.stop]


def test_rows_stand_whole_and_are_roots_where_there_is_no_header() -> None:
    found = recognise(f"Context:\n{ROWS}\nWho won?")
    outline = found.outline
    assert outline is not None
    assert outline.pieces(found.text) == [f"{row}\n" for row in ROWS.split("\n")[:-1]]
    assert (outline.parents, outline.rows, outline.message) == ((), (1, 1, 1), None)
    assert {(row.name, row.kind) for row in found.rows} == {("arrows", "relation")}


def test_a_header_is_the_parent_of_its_rows() -> None:
    found = recognise(f"Answer.\n\nHere are the facts:\n\n{ROWS}\nWho won?")
    assert found.outline is not None
    assert found.outline.parents == (-1, 0, 0, 0)
    assert found.outline.pieces(found.text)[0] == "Here are the facts:\n\n"


def test_a_header_that_names_something_is_no_parent() -> None:
    assert context(f"Facts about Ada:\n{ROWS}\nWho?") == ROWS
    rows = "- Ada —[WON]→ Cup\n- Ada —[IN]→ Mire\n"
    assert context(f"## What Ada Brandt Did\n{rows}\nWho?") == rows


def test_the_message_with_the_most_facts_is_read() -> None:
    messages = [*user(ROWS), {"role": "system", "content": f"a\n{ROWS}{ROWS}"}, *user("Who?")]
    found = recognise(messages)
    assert found.outline is not None and found.outline.message == 1
    assert [(each.message, each.reason) for each in found.unread] == [(0, "in another message")]


def test_what_was_answered_already_is_read_only_where_nothing_newer_holds_facts() -> None:
    past = [*user(ROWS * 3), {"role": "assistant", "content": "Ada."}]
    newer = recognise([*past, *user(f"{ROWS}\nWho?")])
    older = recognise([*past, *user("And who else?")])
    assert newer.outline is not None and newer.outline.message == 2
    assert older.outline is not None and older.outline.message == 0


def test_the_models_own_words_are_not_read() -> None:
    assert context([{"role": "assistant", "content": ROWS}, *user("Who?")]) == ""


def test_a_list_of_parts_is_read_where_one_of_them_is_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    part = {"type": "text", "text": f"Read:\n{ROWS}\nWho?"}
    assert context(user([picture, part])) == ROWS
    assert context(user([part, part])) == ""


def test_blanks_at_the_ends_of_a_message_stay_outside() -> None:
    assert context(user(f"\n\n  {ROWS}\n\n")) == ROWS.strip()
    assert context(user(f"Facts:\n{ROWS}")) == f"Facts:\n{ROWS}".strip()
    assert context(user("[{'a': 1}, {'a': 2}]\n")) == "[{'a': 1}, {'a': 2}"


def test_facts_on_both_sides_of_the_question_are_read_on_one() -> None:
    for question in (
        "Who won the cup?",
        "Question: say who won",
        "# USER QUERY\nwinner of the cup",
    ):
        found = recognise(f"Read:\n{ROWS}\n{question}\n\nMore:\n{ROWS}{ROWS}\n")
        assert found.outline is not None and question not in context(found.text)
        assert len(found.rows) == 6
        assert [each.reason for each in found.unread] == ["beyond the question, or too far off"]


def test_a_text_between_two_blocks_is_a_row() -> None:
    text = f"Read:\n{ROWS}A river runs there.\n\n{ROWS}\nWho?"
    found = recognise(text)
    assert found.outline is not None
    assert found.outline.pieces(text)[3] == "A river runs there.\n\n"
    assert "".join(found.outline.pieces(text)) == context(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Read:\nAda -> won -> Cup\nWho?", "one row only"),
        (f"Read:\n```\n{ROWS}```\nWho?", "inside a code fence"),
        (f"Read:\n```python\n{ROWS}```\nWho?", "inside a code fence"),
        (f"@@ -1,3 +1,4 @@\n{ROWS}\nWho?", "inside a diff"),
        ("To do:\n- Buy a lamp.\n- Sell the boat.\n", "no header"),
        ('<EDGES>\n[{"fact": "a"}, {"fact": "b"}\n', "the end is missing"),
        (
            '-----Texts-----\n```csv\nid,\tcontent\n0,\t"a"\n1,\t"b"\n',
            "inside a fence that is not closed",
        ),
        (f"Wikipedia Title: {'a' * MAX_ROW}\n", f"a row of more than {MAX_ROW} characters"),
    ],
)
def test_what_is_not_read_says_why(text: str, reason: str) -> None:
    found = recognise(text, deadline_s=None)
    assert (found.outline, found.rows, found.reason) == (None, (), "no rows of facts")
    assert reason in {each.reason for each in found.unread}


def test_what_takes_too_long_gives_no_outline() -> None:
    found = recognise(ROWS * 5_000, deadline_s=1e-6)
    assert (found.outline, found.reason) == (None, "took longer than 1e-06 s")


def test_what_is_too_long_gives_no_outline() -> None:
    found = recognise("\n" * (MAX_TEXT + 1))
    assert (found.outline, found.reason) == (None, f"too long: more than {MAX_TEXT} characters")


@pytest.mark.parametrize("odd", ["\ud800", "\0", "\u2028", "\x85", "🦆", "\ufeff"])
def test_odd_letters_change_nothing(odd: str) -> None:
    rows = f"Ada{odd} -> won -> Cup\nMire -> lies on -> Linn{odd}\n"
    assert context(f"{odd}\n{rows}\nWho?") == rows


@pytest.mark.parametrize("prompt", [None, 3, b"a", {"role": "user"}])
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(PromptError, match="no prompt"):
        recognise(prompt)  # pyright: ignore[reportArgumentType]


def test_odd_messages_are_passed_over() -> None:
    odd = [None, 3, {}, {"role": "user"}, {"role": ["user"], "content": "a"}, {"content": ROWS}]
    assert context([*odd, *user(f"Read:\n{ROWS}\nWho?")]) == ROWS


def test_names_switch_recognisers_on() -> None:
    text = f"Read:\n{ROWS}\nWho?"
    assert recognise(text, ["arrows"]).outline is not None
    assert recognise(text, ["records"]).outline is None
    with pytest.raises(PromptError, match="'arows' is no recogniser: use arrows, "):
        recognise(text, ["arows"])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_OWN", {})


STARS = Recogniser(
    name="stars", mark=" ** ", row=r"\w+ \*\* \w+(?P<hits> \d+)?", kind="relation",
    section=r"Stars:\n", volatile=("hits",),
)  # fmt: skip


@pytest.mark.usefixtures("own")
def test_a_recogniser_of_ones_own_is_tried_first() -> None:
    register_recogniser(STARS)
    register_recogniser(STARS)
    assert recognisers()[0] is STARS
    found = depcache.recognise("Read.\nStars:\nAda ** Mire 3\nAda ** Cup 9\n\nWho?")
    assert found.outline is not None
    pieces = found.outline.pieces(found.text)
    assert pieces == ["Stars:\n", "Ada ** Mire", " 3\n", "Ada ** Cup", " 9\n"]


@pytest.mark.usefixtures("own")
def test_a_name_is_given_once() -> None:
    other = Recogniser(name="arrows", mark="a", row="a", kind="record")
    with pytest.raises(PromptError, match="another recogniser named 'arrows'"):
        register_recogniser(other)
    with pytest.raises(PromptError, match="no recogniser"):
        register_recogniser("arrows")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"mark": ""}, "needs a mark"),
        ({"row": "(a"}, "row of the recogniser 'x' is no pattern"),
        ({"section": "[a"}, "section of the recogniser 'x' is no pattern"),
        ({"kind": "fact"}, "use relation, entity, passage, record"),
        ({"volatile": ("b",)}, "has no group 'b'"),
        ({"volatile": "b"}, "volatile of a recogniser"),
        ({"bare": 1}, "bare of a recogniser"),
    ],
)
def test_a_recogniser_that_cannot_work_is_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"name": "x", "mark": "a", "row": "a", "kind": "record", **change}
    with pytest.raises(PromptError, match=message):
        Recogniser(**fields)  # pyright: ignore[reportArgumentType]


def test_the_table_says_what_each_format_is_seen_in() -> None:
    table_of = {each.name: each for each in recognisers()}
    assert len(table_of) == len(recognisers())
    assert all(each.since and each.spelling for each in table_of.values())
