# SPDX-License-Identifier: Apache-2.0
"""Outlines: what cuts a text and what does not, and the prompts that are made of them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.outline import MAX_ELEMENTS, Outline
from depcache.prompt.wire import WireOutline, WireText, outline_of_paths, parse_wire


def encode(texts: list[str]) -> list[list[int]]:
    """A token for each character, so that a test reads tokens as text."""
    return [[ord(character) for character in text] for text in texts]


def to_text(tokens) -> str:
    return "".join(map(chr, tokens))


TEXT = "Facts:\nhead\nA b C\nA b D 1\nE\nWho?"
WHOLE = Outline(
    start=7, lens=(5, 6, 6, 2, 2), rows=(1, 1, 2, 1), parents=(-1, 0, 0, -1), message=None
)


def test_elements_and_rows_are_spans_of_the_text():
    pieces = WHOLE.pieces(TEXT)
    assert pieces == ["head\n", "A b C\n", "A b D ", "1\n", "E\n"]
    ends = pairwise(accumulate(WHOLE.rows, initial=0))
    rows = ["".join(pieces[a:b]) for a, b in ends]
    assert rows == ["head\n", "A b C\n", "A b D 1\n", "E\n"]
    assert TEXT[WHOLE.stop :] == "Who?"


def test_rows_that_stand_whole_keep_the_text_as_it_is():
    prompt = DepPrompt.from_outline(TEXT, WHOLE, tokenizer=encode)
    assert to_text(prompt.tokens) == TEXT and prompt.num_flat_tokens == len(TEXT)
    assert prompt.forest.system_len == 7
    assert prompt.forest.lens.tolist() == [5, 6, 8, 2]
    assert prompt.forest.parents.tolist() == [-1, 0, 0, -1]
    ids, params = prompt.to_wire()
    assert params["depcache_version"] == 2  # two rows below the header begin alike
    assert DepPrompt.from_wire(ids, params).forest.lens.tolist() == [5, 6, 8, 2]
    # "A b D" sees the header and not the row before it.
    mask = prompt.compute_attention_mask()
    row = TEXT.index("A b D")
    assert np.flatnonzero(mask[row]).tolist() == [*range(12), row]


def test_rows_that_merge_become_trees_below_one_lead():
    text = "Facts:\nA->b->C\nA->b->D\nE->b->C?"
    outline = Outline(start=6, lens=(2, 3, 3) * 3, rows=(3, 3, 3), merge=True, lead=1, message=None)
    prompt = DepPrompt.from_outline(text, outline, tokenizer=encode)
    assert to_text(prompt.tokens) == "Facts:\nA->b->CDE->b->C?"
    assert prompt.forest.system_len == 7  # the line break is the system's
    assert prompt.forest.parents.tolist() == [-1, 0, 0, -1]
    assert prompt.to_wire()[1]["depcache_version"] == 1


def test_rows_see_rows_and_the_prompt_comes_back_from_the_wire():
    text = "Facts:\nabcdeWho?"
    outline = Outline(7, (1,) * 5, (1,) * 5, sees=((), (), (0, 1), (2,), (4,)[:0]))
    prompt = DepPrompt.from_outline(text, outline, tokenizer=encode)
    assert Outline.from_json(outline.to_json()) == outline
    # "d" stands below "c", which is joined to "a" and "b" and comes behind all that is joined
    # to nothing.
    assert to_text(prompt.tokens) == "Facts:\nabecdWho?"
    assert prompt.forest.structure.joins == ((3, (0, 1)),)
    ids, params = prompt.to_wire()
    assert params["depcache_version"] == 2
    assert params["depcache_segment_joins"] == [[3, 0, 1]]
    again = DepPrompt.from_wire(ids, params)
    assert again.to_wire() == (ids, params)
    assert again.num_flat_tokens == prompt.num_flat_tokens
    assert (again.compute_attention_mask() == prompt.compute_attention_mask()).all()
    # The set decides where a joined row sits, and the order of rows does not.
    assert prompt.positions.tolist() == [*range(7), 7, 7, 7, 8, 9, 10, 11, 12, 13]


def test_rows_that_see_nothing_are_as_without_sees():
    outline = Outline(7, (1,) * 3, (1,) * 3, sees=((), (), ()))
    assert outline == Outline(7, (1,) * 3, (1,) * 3)


def test_what_is_absent_is_told_and_changes_nothing_else():
    outline = Outline(7, (1,) * 3, (1,) * 3, message=1, absent=2)
    assert Outline.from_json(outline.to_json()) == outline == outline.moved(7, 1)
    assert outline.to_json()["absent"] == 2
    plain = Outline(7, (1,) * 3, (1,) * 3, message=1)
    assert "absent" not in plain.to_json() and outline != plain
    text = "Facts:\nabcWho?"
    found, expected = (
        DepPrompt.from_outline(text, each, tokenizer=encode).to_wire() for each in (outline, plain)
    )
    assert found == expected


def test_rows_that_see_the_same_share_their_beginnings_where_they_merge():
    text = "Facts:|abx|aby|acz?"
    outline = Outline(6, (4, 4, 4), (1, 1, 1), merge=True, lead=1, sees=((), (), (0, 1)))
    prompt = DepPrompt.from_outline(text, outline, tokenizer=encode)
    assert to_text(prompt.tokens) == "Facts:|abxyacz?"
    assert prompt.forest.structure.joins == ((3, (1, 2)),)


def test_the_outline_form_is_read():
    data = {"message": 0, "start": 2, "lens": [3, 4, 5], "rows": [2, 1]}
    params = {"depcache_version": 2, "depcache_layout": "tree", "depcache_outline": data}
    wire = parse_wire({**params, "other": 1})
    assert isinstance(wire, WireOutline)
    assert wire.outline == Outline(start=2, lens=(3, 4, 5), rows=(2, 1), message=0)
    assert wire.to_params() == params
    assert wire.outline.to_params("tree", "path") == {
        **params,
        "depcache_template": "path",
    }
    with pytest.raises(PromptError, match="2 rows, and this server takes at most 1"):
        parse_wire(params, max_paths=1)


def test_paths_of_version_1_are_an_outline():
    wire = parse_wire({"depcache_version": 1, "depcache_paths": '[["A","b","C"],["A","b","D"]]'})
    assert isinstance(wire, WireText)
    text = f"Facts:{wire.flat_text}\n\nWho?"
    outline = outline_of_paths(text, wire)
    assert outline.pieces(text) == ["\nA", " -> b", " -> C", "\nA", " -> b", " -> D"]
    by_outline = DepPrompt.from_outline(text, outline, tokenizer=encode)
    by_paths = DepPrompt.from_paths(wire.paths, tokenizer=encode, system="Facts:", task="\n\nWho?")
    assert by_outline.tokens.tolist() == by_paths.tokens.tolist()
    assert by_outline.to_wire() == by_paths.to_wire()
    assert by_outline.num_flat_tokens == by_paths.num_flat_tokens


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start": -1}, "start of the outline is -1"),
        ({"start": True}, "start of the outline is True"),
        ({"start": 1.5}, "start of the outline is 1.5"),
        ({"start": None}, "start of the outline is None"),
        ({"lens": 5}, "lens of the outline is 5"),
        ({"lens": "55555"}, "lens of the outline is '55555'"),
        ({"lens": [5, 6, 6, 2, 0]}, "0 is among the lens"),
        ({"lens": [5, 6, 6, 2, -3]}, "-3 is among the lens"),
        ({"lens": [5, 6, 6, 2, "2"]}, "'2' is among the lens"),
        ({"lens": [5, 6, 6, 2, True]}, "True is among the lens"),
        ({"lens": [5, 6, 6, 2, float("nan")]}, "nan is among the lens"),
        ({"lens": [5, 6, 6, 2]}, "have 5 elements, but there are 4 lens"),
        ({"lens": [1] * (MAX_ELEMENTS + 1)}, "more than 1048576"),
        ({"rows": []}, "has no rows"),
        ({"rows": [1, 1, 2, 0]}, "0 is among the rows"),
        ({"rows": {}}, "rows of the outline is"),
        ({"parents": [-1, 0, 0]}, "4 rows and 3 parents"),
        ({"parents": [-1, 1, 0, -1]}, "row 1 of the outline has parent 1"),
        ({"parents": [-1, 0, 3, -1]}, "row 2 of the outline has parent 3"),
        ({"parents": [-1, -1, 0, -1]}, "row 2 of the outline has parent 0"),
        ({"parents": [0, 0, 0, -1]}, "row 0 of the outline has parent 0"),
        ({"parents": [-1, 0, 0, -2]}, "row 3 of the outline has parent -2"),
        ({"merge": True}, "cannot be combined with merge"),
        ({"merge": 1}, "merge of the outline is 1"),
        ({"message": -1}, "message of the outline is -1"),
        ({"message": "0"}, "message of the outline is '0'"),
        ({"lead": -1}, "lead of the outline is -1"),
        ({"absent": -1}, "absent of the outline is -1"),
        ({"absent": True}, "absent of the outline is True"),
        ({"absent": "1"}, "absent of the outline is '1'"),
        ({"absent": [1]}, "absent of the outline is [1]"),
        ({"absent": 10**400}, "from 0 to 1048576"),
        ({"stop": 9}, "'stop' is no key of the outline"),
    ],
)
def test_an_outline_that_cuts_no_text_is_refused_with_one_sentence(changes, sentence):
    data = {**WHOLE.to_json(), **changes}
    with pytest.raises(PromptError) as caught:
        Outline.from_json(data)
    assert sentence in str(caught.value) and len(str(caught.value)) < 300


def test_an_outline_that_leaves_the_text_is_refused():
    with pytest.raises(PromptError, match="reaches to code point 28, but the text has 27"):
        WHOLE.pieces(TEXT[:27])
    # Characters beyond 16 bits are one code point here, and two units in UTF-16.
    assert Outline(0, (1, 1), (2,)).pieces("😀!?") == ["😀", "!"]


def test_a_lead_that_rows_do_not_share_is_refused():
    outline = Outline(0, (2, 2), (1, 1), merge=True, lead=1)
    with pytest.raises(PromptError, match="do not all begin with the same text"):
        DepPrompt.from_outline("-A+B?", outline, tokenizer=encode)
    with pytest.raises(PromptError, match="do not all begin"):
        DepPrompt.from_outline("AAAA?", Outline(0, (2, 2), (1, 1), (), True, None, 3),
                               tokenizer=encode)  # fmt: skip


def test_a_million_rows_are_refused_by_their_number():
    with pytest.raises(PromptError, match="holds 2000000 numbers"):
        Outline.from_json({"start": 0, "lens": [1] * 2 * 10**6, "rows": [1] * 2 * 10**6})
    with pytest.raises(PromptError, match="elements, but there are 1 lens"):
        Outline.from_json({"start": 0, "lens": [1], "rows": [10**30]})


def test_no_text_behind_the_rows_is_no_task():
    with pytest.raises(PromptError, match="the task has no tokens"):
        DepPrompt.from_outline("ab", Outline(0, (1, 1), (2,)), tokenizer=encode)


numbers = st.lists(st.integers(-2, 6), max_size=6)


@given(
    start=st.integers(-1, 8),
    lens=numbers,
    rows=numbers,
    parents=numbers,
    merge=st.booleans(),
    lead=st.integers(0, 2),
)
def test_whatever_is_read_makes_a_prompt_or_is_refused(start, lens, rows, parents, merge, lead):
    try:
        outline = Outline(start, lens, rows, parents, merge, None, lead)
        prompt = DepPrompt.from_outline(TEXT, outline, tokenizer=encode)
    except PromptError:
        return
    assert Outline.from_json(outline.to_json()) == outline
    assert "".join(outline.pieces(TEXT)) == TEXT[outline.start : outline.stop]
    if not merge:
        assert to_text(prompt.tokens) == TEXT
    assert prompt.forest.task_len == len(TEXT) - outline.stop
