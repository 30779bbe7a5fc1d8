# SPDX-License-Identifier: Apache-2.0
"""The wire form: what is read, what is refused, and that refusing is cheap."""

from __future__ import annotations

import json
from array import array
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import depcache.prompt.wire
from depcache.errors import PromptError
from depcache.prompt.wire import (
    WireIds,
    WireText,
    forest_from_wire,
    make_schema,
    parse_wire,
    read_input_ids,
    split_text,
)
from depcache.prompt.wire_forms import MAX_PATHS_BYTES

INPUT_IDS = list(range(10))
IDS = {
    "depcache_version": 1,
    "depcache_layout": "staggered",
    "depcache_system_len": 2,
    "depcache_segment_lens": [2, 1, 1, 2],
    "depcache_segment_parents": [-1, 0, 0, -1],
}
TEXT = {
    "depcache_version": 1,
    "depcache_layout": "sequential",
    "depcache_template": "path",
    "depcache_paths": '[["a", "r", "b"], ["a", "s", "c"]]',
}
OUTLINE = {
    "depcache_version": 2,
    "depcache_layout": "tree",
    "depcache_outline": {"message": 0, "start": 2, "lens": [3, 4, 5], "rows": [2, 1]},
}


def read(params: Any, input_ids: Any = INPUT_IDS) -> None:
    wire = parse_wire(params)
    if isinstance(wire, WireIds):
        forest_from_wire(input_ids, wire)


def test_the_ids_form_is_read():
    wire = parse_wire({**IDS, "temperature": 1, "__req__": object(), 5: 6})
    assert isinstance(wire, WireIds)
    assert wire.layout == "staggered"
    assert wire.to_params() == IDS
    forest = forest_from_wire(INPUT_IDS, wire)
    assert forest.starts.tolist() == [2, 4, 5, 6]
    assert forest.task_start == 8


def test_the_text_form_is_read():
    wire = parse_wire({**TEXT, "other": 1})
    assert isinstance(wire, WireText)
    assert (wire.layout, wire.template) == ("sequential", "path")
    assert wire.paths == [("a", "r", "b"), ("a", "s", "c")]
    assert wire.flat_text == "\na -> r -> b\na -> s -> c"
    assert wire.to_params() == TEXT


def test_only_in_version_2_segments_with_one_parent_begin_alike():
    params = ids(segment_lens=[1, 2, 1, 2], segment_parents=[-1, -1, 1, -1])
    with pytest.raises(PromptError, match="segments 1 and 3 have the same parent -1") as caught:
        read({**params, "depcache_system_len": 1}, [0, 7, 5, 6, 7, 5, 9, 8, 8, 8])
    assert "start with token 5" in str(caught.value)
    wire = parse_wire({**params, "depcache_version": 2, "depcache_system_len": 1})
    assert isinstance(wire, WireIds)
    assert forest_from_wire([0, 7, 5, 6, 7, 5, 9, 8, 8, 8], wire).num_segments == 4


def test_layout_and_template_have_defaults():
    wire = parse_wire({"depcache_version": 1, "depcache_paths": '[["a"]]'})
    assert isinstance(wire, WireText)
    assert (wire.layout, wire.template) == ("tree", "path")


@pytest.mark.parametrize("params", [None, {}, {"temperature": 1}, {"dep_len": [1]}, {5: 6}])
def test_without_depcache_keys_a_prompt_is_plain(params):
    assert parse_wire(params) is None


def ids(**changes: Any) -> dict[str, Any]:
    return IDS | {f"depcache_{key}": value for key, value in changes.items()}


def text(**changes: Any) -> dict[str, Any]:
    return TEXT | {f"depcache_{key}": value for key, value in changes.items()}


def outline(**changes: Any) -> dict[str, Any]:
    return OUTLINE | {f"depcache_{key}": value for key, value in changes.items()}


def without(params: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {
        key: value for key, value in params.items() if key.removeprefix("depcache_") not in keys
    }


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]

MALFORMED = [
    (ids(version=3), "depcache_version is 3: this server supports 1, 2"),
    (ids(version=3, anything="new"), "this server supports 1, 2"),
    (text(version=2), "'depcache_paths' is no key of version 2"),
    (IDS | OUTLINE, "keys of both forms"),
    (OUTLINE | {"depcache_version": 1}, "'depcache_outline' is no key of version 1"),
    (outline(outline=[1]), "depcache_outline is"),
    (outline(outline={"start": 0, "lens": [1]}), "rows is missing of the outline"),
    (outline(outline={"start": 0, "lens": [1], "rows": [2]}), "have 2 elements"),
    (outline(template=5), "depcache_template is 5"),
    (ids(version=True), "depcache_version is True"),
    (ids(version=1.0), "depcache_version is 1.0"),
    (ids(version="1"), "depcache_version is '1'"),
    (ids(version=None), "depcache_version is None"),
    (without(IDS, "version"), "depcache_version is missing"),
    ({"depcache_version": 1}, "no prompt structure"),
    ({"depcache_version": 1, "depcache_layout": "tree"}, "no prompt structure"),
    (IDS | TEXT, "keys of both forms"),
    (ids(template="path"), "keys of both forms"),
    (ids(paths="[]"), "keys of both forms"),
    (ids(lens=[1]), "'depcache_lens' is no key of version 1"),
    (ids(**{"": 1}), "'depcache_' is no key"),
    ({"depcache_": 1}, "depcache_version is missing"),
    (ids(layout="parallel"), "depcache_layout is 'parallel'"),
    (ids(layout=None), "depcache_layout is None"),
    (ids(layout=["tree"]), "depcache_layout is"),
    (without(IDS, "system_len"), "depcache_system_len is missing"),
    (without(IDS, "segment_lens"), "depcache_segment_lens is missing"),
    (without(IDS, "segment_parents"), "depcache_segment_parents is missing"),
    (ids(system_len=-1), "depcache_system_len is -1"),
    (ids(system_len=2.0), "depcache_system_len is 2.0"),
    (ids(system_len=True), "depcache_system_len is True"),
    (ids(system_len="2"), "depcache_system_len is '2'"),
    (ids(system_len=[2]), "depcache_system_len is"),
    (ids(system_len=4), "no token for the task"),
    (ids(system_len=10**18), "the system length is 10000"),
    (ids(system_len=10**5000), "the system length is"),
    (ids(segment_lens=[2, 1, 1, True]), r"depcache_segment_lens\[3\] is True"),
    (ids(segment_lens=[2, 1.0, 1, 2]), r"depcache_segment_lens\[1\] is 1.0"),
    (ids(segment_lens=[2, "1", 1, 2]), r"depcache_segment_lens\[1\] is '1'"),
    (ids(segment_lens=[2, None, 1, 2]), r"depcache_segment_lens\[1\] is None"),
    (ids(segment_lens=[2, [1], 1, 2]), r"depcache_segment_lens\[1\] is"),
    (ids(segment_lens=5), "depcache_segment_lens is 5"),
    (ids(segment_lens="2112"), "depcache_segment_lens is '2112'"),
    (ids(segment_lens={"0": 2}), "depcache_segment_lens is"),
    (ids(segment_lens=None), "depcache_segment_lens is None"),
    (ids(segment_lens=[2, 0, 1, 2]), "segment 1 has length 0"),
    (ids(segment_lens=[2, -1, 1, 2]), "segment 1 has length -1"),
    (ids(segment_lens=[2, 1, 1, 4]), "no token for the task"),
    (ids(segment_lens=[2, 1, 1]), "3 segment lengths but 4"),
    (ids(segment_lens=[2, 1, 1, 10**18]), "segment 3 has length 10000"),
    (ids(segment_lens=[2, 1, 1, 10**19]), "no 64-bit integer"),
    (ids(segment_lens=[2, 1, 1, -(10**5000)]), "no 64-bit integer"),
    (ids(segment_lens=[1] * 11, segment_parents=[-1] * 11), "11 segment lengths in a prompt of 10"),
    (ids(segment_lens=DEEP), r"depcache_segment_lens\[0\] is"),
    (ids(segment_parents=[-1, 0, 0, 4]), "segment 3 has parent 4"),
    (ids(segment_parents=[-1, 0, 0, 3]), "segment 3 has parent 3"),
    (ids(segment_parents=[0, 0, 0, -1]), "segment 0 has parent 0"),
    (ids(segment_parents=[-1, 0, 0, -2]), "segment 3 has parent -2"),
    (ids(segment_parents=[-1, -1, 0, -1]), "pre-order"),
    (ids(segment_parents=[-1, 0, 0, False]), r"depcache_segment_parents\[3\] is False"),
    (ids(segment_parents=[-1, 0, 0, 10**30]), "no 64-bit integer"),
    (without(TEXT, "paths"), "depcache_paths is missing"),
    (text(template="mine"), "'mine' is no template: use path, triple"),
    (text(template=5), "depcache_template is 5"),
    (text(template=None), "depcache_template is None"),
    (text(layout="flat"), "depcache_layout is 'flat'"),
    (text(paths=[["a"]]), "depcache_paths is"),
    (text(paths=b'[["a"]]'), "depcache_paths is"),
    (text(paths=""), "depcache_paths is"),
    (text(paths="nonsense"), "depcache_paths is"),
    (text(paths='[["a"]'), "depcache_paths is"),
    (text(paths='[["a"]] x'), "depcache_paths is"),
    (text(paths="null"), "depcache_paths is None"),
    (text(paths='{"a": 1}'), "depcache_paths is"),
    (text(paths='["a"]'), r"depcache_paths\[0\] is 'a'"),
    (text(paths='[["a"], ["b", 1]]'), r"depcache_paths\[1\]\[1\] is 1"),
    (text(paths='[["a"], ["b", null]]'), r"depcache_paths\[1\]\[1\] is None"),
    (text(paths='[["a", ["b"]]]'), r"depcache_paths\[0\]\[1\] is"),
    (text(paths="[]"), "empty list"),
    (text(paths="[[]]"), "path 0 is empty"),
    (text(paths='[["a"], ["b", " "]]'), "path 1 has the blank element"),
    (text(paths='[["\\ud800"]]'), "depcache_paths"),
    (text(paths='[["\ud800"]]'), "surrogate"),
    (text(paths="[" * 10_000), "depcache_paths is"),
    (text(paths='["' + "a" * MAX_PATHS_BYTES + '"]'), "longer than the 4194304 bytes"),
    (text(paths='["' + "é" * (MAX_PATHS_BYTES // 2) + '"]'), "longer than the 4194304 bytes"),
    ([1, 2], r"custom_params is \[1, 2\]"),
    ("depcache_version", "custom_params is"),
]


@pytest.mark.parametrize(("params", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_parameters_are_refused_with_one_short_sentence(params, message):
    with pytest.raises(PromptError, match=message) as caught:
        read(params)
    assert len(str(caught.value)) < 450
    assert "\n" not in str(caught.value)
    # Clients get the sentence as UTF-8 and JSON.
    str(caught.value).encode()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("input_ids", "message"),
    [
        ([], "1 to"),
        ([0] * 8, "leave no token for the task"),
        (None, "input_ids are None"),
        ("0123456789", "input_ids are '0123456789'"),
        (5, "input_ids are 5"),
        ([list(range(10))], "one prompt per request"),
        ([0] * 9 + [True], "True is among the input_ids"),
        ([0] * 9 + [1.0], "1.0 is among the input_ids"),
        ([0] * 9 + ["1"], "'1' is among the input_ids"),
        ([0] * 9 + [None], "None is among the input_ids"),
        ([0] * 9 + [-1], "-1 is among the input_ids"),
        ([0] * 9 + [2**31], "2147483648 is among the input_ids"),
        ([0] * 9 + [10**30], "input_ids have .*object"),
        ([-1] * 9 + [2**63], "input_ids"),
        (np.zeros(10), "float64"),
        (np.zeros((2, 5), np.int64), "shape"),
        (np.array(5), "shape"),
        (np.zeros(10, np.bool_), "bool"),
        (array("d", [0.0] * 10), "float64"),
    ],
)
def test_malformed_input_ids_are_refused(input_ids, message):
    with pytest.raises(PromptError, match=message) as caught:
        read(IDS, input_ids)
    assert len(str(caught.value)) < 450


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, lambda ids: array("q", ids), lambda ids: np.array(ids, np.int32)],
)
def test_input_ids_may_come_in_any_container_and_are_copied(make):
    input_ids = make(INPUT_IDS)
    tokens = read_input_ids(input_ids)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == INPUT_IDS
    tokens[0] = 77
    assert list(input_ids) == INPUT_IDS


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([0, 1, 2, 3, 5, 5, 6, 7, 8, 9], "segments 1 and 2 have the same parent 0.* token 5"),
        ([0, 1, 2, 3, 4, 5, 2, 7, 8, 9], "segments 0 and 3 have the same parent -1.* token 2"),
    ],
)
def test_siblings_that_start_with_the_same_token_are_refused(tokens, message):
    with pytest.raises(PromptError, match=message):
        read(IDS, tokens)


def test_the_same_token_under_different_parents_or_inside_is_fine():
    read(IDS, [0, 0, 2, 2, 2, 3, 5, 2, 2, 2])


@given(
    st.dictionaries(
        st.sampled_from([*IDS, *TEXT, *OUTLINE, "depcache_x"]),
        st.recursive(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(),
                st.integers(-1, 3),
                st.floats(),
                st.text(),
                st.sampled_from(["tree", "path", '[["a"]]']),
            ),
            lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(), some, max_size=2),
            max_leaves=6,
        ),
    ),
    st.sampled_from([None, 1, 2]),
)
def test_anything_else_is_read_or_refused_and_nothing_escapes(params, version):
    if version is not None:
        params["depcache_version"] = version
    try:
        read(params)
    except PromptError:
        pass


@pytest.mark.parametrize(
    "params", [ids(segment_lens=["x"] * 10**6), text(paths=json.dumps([1] * 10**6))], ids=type
)
def test_a_million_wrong_values_are_refused_for_the_first(params):
    with pytest.raises(PromptError, match=r"\[0\]") as caught:
        read(params)
    # An error for each would take minutes.
    assert isinstance(caught.value.__context__, ValidationError)
    assert caught.value.__context__.error_count() == 1


# Text


def make_text_wire() -> WireText:
    wire = parse_wire(TEXT)
    assert isinstance(wire, WireText)
    return wire


def test_split_text_finds_what_is_before_and_behind():
    wire = make_text_wire()
    assert split_text(f"S{wire.flat_text}T", wire) == ("S", "T")
    assert split_text(wire.flat_text, wire) == ("", "")


def test_split_text_wants_the_facts_exactly_once():
    wire = make_text_wire()
    flat_text = wire.flat_text
    for text_, message in [
        ("", "does not contain"),
        (f"S{flat_text[:-1]}T", "does not contain"),
        (f"S{flat_text.replace('->', '&gt;')}T", "does not contain"),
        (f"S{flat_text}x{flat_text}T", "2 times"),
        (flat_text * 3, "3 times"),
    ]:
        with pytest.raises(PromptError, match=message):
            split_text(text_, wire)


def test_facts_that_overlap_themselves_are_found_twice():
    wire = parse_wire(text(paths='[["a"], ["b"], ["a\\nb\\na"]]'))
    assert isinstance(wire, WireText)
    assert wire.flat_text == "\na\nb\na\nb\na"
    with pytest.raises(PromptError, match="2 times"):
        split_text("\na\nb\na\nb\na\nb\na", wire)


# Schema


def test_the_published_schema_is_that_of_the_model():
    file = FilePath(depcache.prompt.wire.__file__).with_name("schema.json")
    assert json.loads(file.read_text()) == make_schema(), (
        "run: python -m depcache.prompt.wire > depcache/prompt/schema.json"
    )


def test_the_schema_agrees_with_the_parser():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(make_schema())
    good = [IDS, TEXT, OUTLINE, IDS | {"other": 1}, ids(version=2), outline(template="path")]
    bad = [
        ids(version=3),
        text(version=2),
        outline(version=1),
        outline(outline={"start": 0, "lens": [0], "rows": [1]}),
        outline(outline={"start": 0, "lens": [1], "rows": [1], "stop": 1}),
        outline(outline={"start": 0, "lens": [], "rows": []}),
        ids(lens=[1]),
        ids(layout="flat"),
        ids(system_len=-1),
        ids(segment_lens=["1"]),
        without(IDS, "segment_lens"),
        IDS | TEXT,
        text(paths=[["a"]]),
    ]
    for params in good:
        assert validator.is_valid(params)
        read(params)
    for params in bad:
        assert not validator.is_valid(params)
        with pytest.raises(PromptError):
            read(params)
