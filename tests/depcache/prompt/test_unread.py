# SPDX-License-Identifier: Apache-2.0
"""What looks like facts is noticed in the formats of the frameworks, and not in other texts."""

from __future__ import annotations

import pytest

from depcache.prompt.unread import MAX_TEXT, find_unread, texts_of

ROWS = {
    "A -> relation -> B": "Ada -> born in -> Mire\nAda -> won -> Cup -> given in -> Quill",
    "A -[relation]-> B": "Ada --[born in]--> Mire\n- Ada —[WON]→ Cup: Ada won it.",
    "A - RELATION -> B": "<Data t='== rels ==\\nAda - BORN_IN -> Mire\\nAda - WON -> Cup'>",
    "['A', 'relation', 'B']": "['Ada', 'born in', 'Mire']\n['Ada', \"won\", 'Cup']",
    "<Record ...>": "<Record a='Ada' r='won'>\n<Record a='Bob' r='won'>",
    '{"entity1": ..., "entity2": ...}': (
        '[{"fact": "Ada was born in Mire.", "from": 3}, {"fact": "Ada won."}]'
    ),
    "source|target|description": (
        "-----Relations-----\nid|source|target|description\n0|ADA|MIRE|Born there.\n1|ADA|CUP|Won."
    ),
    "A relation B": "Use these triplets to answer.\n\nAda born in Mire\nAda won Cup\n\nWho?",
}
NO_FACTS = [
    "Where was Ada born? She won the Cup - and more -> see below.",
    "Here are the facts:\n\nOnly one line.",
    "def f(a) -> int:\n    return {'a': 1}\n\nMATCH (a)-[r:IN]->(b)\nMATCH (c)-[r:IS]->(d)",
    "| name | size |\n|---|---|\n| a | 1 |\n| b | 2 |",
    '{"name": "tool", "arguments": {"city": "Mire"}}\n{"name": "tool", "arguments": {}}',
    "Ada -> born in -> Mire",
]


@pytest.mark.parametrize("spelling", ROWS)
def test_rows_of_facts_are_noticed_and_named(spelling: str) -> None:
    [found] = find_unread([f"Answer from this.\n{ROWS[spelling]}\nWhere was Ada born?"])
    assert (found.spelling, found.count) == (spelling, 2)
    assert found.example and found.example in ROWS[spelling]


@pytest.mark.parametrize("text", NO_FACTS)
def test_other_texts_are_not(text: str) -> None:
    assert find_unread([text]) == []


def test_rows_of_several_texts_count_together_the_most_frequent_first() -> None:
    one, two = ROWS["A -> relation -> B"].split("\n")
    found = find_unread([one, two, ROWS["<Record ...>"], "<Record c='d'>"])
    assert [(each.spelling, each.count) for each in found] == [
        ("<Record ...>", 3),
        ("A -> relation -> B", 2),
    ]


@pytest.mark.parametrize("piece", ["[{", "a -> ", "['a'", "<Record ", "—[", "- [", "(', ", "a\t"])
def test_no_text_takes_steps_in_its_square(piece: str) -> None:
    # 26 seconds once, for 80,000 of "—["; pytest's own limit is the end of a test that hangs.
    find_unread([piece * (MAX_TEXT // len(piece))])
    find_unread([f"{piece}{' ' * (MAX_TEXT // 2)}{piece}"])


def test_texts_are_those_of_everyone_but_the_model() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url"}, "odd"]
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": parts}]
    assert texts_of([*messages, {"role": "assistant", "content": "c"}, None, {}]) == ["a", "b"]
    assert texts_of("odd") == texts_of(None) == []
