# SPDX-License-Identifier: Apache-2.0
"""The keys of a fused request on the wire, and what does not fit together."""

from __future__ import annotations

from typing import Any

import pytest

from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.recompute import Recompute
from depcache.prompt.render import render, render_chunks
from depcache.prompt.tokenization import get_prompt_tokenizer
from depcache.prompt.wire import WireIds, WireOutline, parse_wire
from tests.depcache.prompt.make import make_bpe

IDS: dict[str, Any] = {
    "depcache_version": 2,
    "depcache_system_len": 2,
    "depcache_segment_lens": [3, 4],
    "depcache_segment_parents": [-1, -1],
}
OUTLINE: dict[str, Any] = {
    "depcache_version": 2,
    "depcache_outline": {"start": 0, "lens": [3, 4], "rows": [1, 1]},
}
FUSED = {"depcache_see": "fused"}


def read(params: dict[str, Any], **more: Any) -> WireIds | WireOutline:
    wire = parse_wire({**params, **{f"depcache_{name}": value for name, value in more.items()}})
    assert isinstance(wire, WireIds | WireOutline)
    return wire


@pytest.mark.parametrize("form", [IDS, OUTLINE], ids=["ids", "outline"])
def test_a_fused_request_is_sequential_and_has_defaults(form: dict[str, Any]) -> None:
    wire = read({**form, **FUSED})
    assert wire.recompute == Recompute(0.15, "first")
    assert wire.layout == "sequential"
    assert read(form).recompute is None


@pytest.mark.parametrize("form", [IDS, OUTLINE], ids=["ids", "outline"])
def test_a_fused_request_comes_back_from_its_keys(form: dict[str, Any]) -> None:
    asked = {"see": "fused", "recompute": 0.3, "select": "random", "seed": 4, "pin": True}
    asked |= {"patches": False, "budget": "chunk"}
    wire = read(form, **asked)
    assert wire.recompute == Recompute(
        0.3, "random", seed=4, is_pinned=True, patches=False, budget="chunk"
    )
    assert parse_wire(wire.to_params()) == wire


@pytest.mark.parametrize("form", [IDS, OUTLINE], ids=["ids", "outline"])
def test_other_requests_have_none_of_its_keys(form: dict[str, Any]) -> None:
    assert not any("see" in key or "recompute" in key for key in read(form).to_params())


@pytest.mark.parametrize(
    ("form", "changed", "why"),
    [
        (IDS, {"version": 1}, "depcache_see"),
        (IDS, {"layout": "tree"}, "depcache_layout is 'tree' in a fused request"),
        (IDS, {"see": "all"}, "depcache_see is 'all'"),
        (IDS, {"recompute": 1.1}, "depcache_recompute is 1.1"),
        (IDS, {"recompute": -0.1}, "depcache_recompute is -0.1"),
        (IDS, {"recompute": float("nan")}, "depcache_recompute is nan"),
        (IDS, {"recompute": True}, "depcache_recompute is True"),
        (IDS, {"recompute": "0.1"}, "depcache_recompute is '0.1'"),
        (IDS, {"select": "best"}, "depcache_select is 'best'"),
        (IDS, {"select": "given"}, "came without depcache_selected"),
        (IDS, {"selected": [3]}, "does not go with depcache_selected"),
        (IDS, {"select": "given", "selected": ["3"]}, "depcache_selected[0] is '3'"),
        (IDS, {"select": "given", "selected": None}, "depcache_selected is None"),
        (IDS, {"seed": -1}, "depcache_seed is -1"),
        (IDS, {"budget": "row"}, "depcache_budget is 'row'"),
        (IDS, {"focus": "all"}, "depcache_focus is 'all'"),
        (IDS, {"focus": "settle", "select": "given", "selected": [3]}, "whose indices are final"),
        (IDS, {"select": "stored", "alpha": 0}, "depcache_alpha is 0"),
        (IDS, {"select": "stored", "alpha": 10.5}, "depcache_alpha is 10.5"),
        (IDS, {"select": "stored", "alpha": "1"}, "depcache_alpha is '1'"),
        (IDS, {"alpha": 2.0}, "alpha goes with the selector stored, and this one is first"),
        (IDS, {"select": "stored", "recompute": 0.3}, "depcache_recompute came with the selector"),
        (IDS, {"select": "stored", "budget": "chunk"}, "depcache_budget came with the selector"),
        (IDS, {"select": "stored", "behind": [[3], None]}, "depcache_behind came with the select"),
        (IDS, {"patches": 1}, "depcache_patches is 1"),
        (IDS, {"patches": "true"}, "depcache_patches is 'true'"),
        (OUTLINE, {"select": "given", "selected": [3]}, "whose tokens nobody has counted"),
    ],
)
def test_keys_that_do_not_fit_are_refused(
    form: dict[str, Any], changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(PromptError) as error:
        read({**form, **FUSED}, **changed)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["recompute", "select", "selected", "seed", "pin", "patches"])
def test_keys_of_a_fused_request_alone_are_refused(name: str) -> None:
    values = {"recompute": 0.5, "select": "first", "selected": [3], "seed": 1, "pin": True}
    value = {**values, "patches": True}[name]
    with pytest.raises(PromptError, match=f"depcache_{name} goes with depcache_see"):
        read(IDS, **{name: value})


def test_a_layout_that_a_fused_request_cannot_have_is_refused() -> None:
    with pytest.raises(PromptError, match="the layout is 'staggered' in a fused request"):
        render([("A", "r", "B")], "Who?", layout="staggered", recompute=0.2)
    params = render([("A", "r", "B")], "Who?", recompute=0.2).extra_body["custom_params"]
    assert params["depcache_layout"] == "sequential"


def test_a_budget_that_is_none_is_refused() -> None:
    with pytest.raises(PromptError, match="'row' is no budget: use one of global, chunk"):
        Recompute(budget="row")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("share", [True, "0.1", 2, float("nan"), None])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(PromptError, match="send a number from 0 to 1"):
        Recompute.read(share)


def test_chunks_become_rows_that_begin_with_their_separator() -> None:
    prompt = DepPrompt.from_chunks(
        ["one", "two", "one"], tokenizer=make_bpe(), system="S", task="T?", recompute=0.5
    )
    assert [segment.text for segment in prompt.segments] == ["\n\none", "\n\ntwo"]
    assert prompt.layout == "sequential"
    ids, params = prompt.to_wire()
    again = DepPrompt.from_wire(ids, params)
    assert again.recompute == Recompute(0.5)
    assert params["depcache_version"] == 2


def test_chunks_alone_are_an_exact_prompt() -> None:
    prompt = DepPrompt.from_chunks(["one", "two"], tokenizer=make_bpe(), task="T?")
    assert prompt.recompute is None and prompt.layout == "tree"


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([], "there are no chunks"),
        (["a", " "], "chunk 1 is ' '"),
        (["a", 3], "chunk 1 is 3"),
        ("abc", "the chunks are one text"),
    ],
)
def test_chunks_that_are_none_are_refused(chunks: Any, why: str) -> None:
    with pytest.raises(PromptError) as error:
        DepPrompt.from_chunks(chunks, tokenizer=make_bpe(), task="T?")
    assert why in str(error.value)


def test_a_separator_is_needed() -> None:
    with pytest.raises(PromptError, match="send some text"):
        DepPrompt.from_chunks(["a"], tokenizer=make_bpe(), task="T?", separator="")


# what rows stand behind


@pytest.mark.parametrize(
    ("form", "behind"), [(IDS, [[4, 5], None]), (OUTLINE, [None, "before it"])], ids=["ids", "text"]
)
def test_what_rows_stand_behind_comes_back_from_the_keys(form: dict[str, Any], behind: Any) -> None:
    wire = read(form, see="fused", behind=behind)
    expected = tuple(tuple(each) if isinstance(each, list) else each for each in behind)
    assert wire.recompute == Recompute(behind=expected)
    assert wire.to_params()["depcache_behind"] == behind
    assert parse_wire(wire.to_params()) == wire
    for nothing in ([], [None, None]):
        assert "depcache_behind" not in read(form, see="fused", behind=nothing).to_params()


@pytest.mark.parametrize(
    ("form", "behind", "why"),
    [
        (IDS, [[], None], "depcache_behind has an empty entry"),
        (OUTLINE, ["", None], "depcache_behind has an empty entry"),
        (IDS, [[[]], None], "depcache_behind has an empty entry"),
        (IDS, [[[4], []], None], "depcache_behind has an empty entry"),
        (IDS, [[[[4]]], None], "depcache_behind"),
        (OUTLINE, [["text", ""], None], "depcache_behind has an empty entry"),
        (OUTLINE, [["text", [4]], None], "has token ids, but the prompt came as text"),
        (IDS, "text", "depcache_behind"),
        (IDS, [True, None], "depcache_behind"),
        (OUTLINE, [[4], None], "has token ids, but the prompt came as text"),
        (OUTLINE, ["\ud800", None], "depcache_behind"),
    ],
)
def test_what_no_row_can_stand_behind_is_refused(
    form: dict[str, Any], behind: Any, why: str
) -> None:
    with pytest.raises(PromptError, match=why):
        _ = read(form, see="fused", behind=behind).recompute


def test_it_goes_with_fused_requests_alone() -> None:
    with pytest.raises(PromptError, match="depcache_behind goes with depcache_see"):
        read(IDS, behind=[[4], None])


def test_chunks_are_rendered_with_what_they_stand_behind() -> None:
    prompt = render_chunks(["b", "c", "b"], "Why?", behind=["a", None, "a"], separator="; ")
    params = prompt.extra_body["custom_params"]
    assert params["depcache_behind"] == ["; a", None]
    assert len(params["depcache_outline"]["rows"]) == 2
    assert "; a" not in prompt.messages[-1]["content"]
    wrong: Any
    for wrong, why in (
        (["a"], "there are 2 chunks, but 1 texts"),
        (["a", " "], "what chunk 1 stands behind is ' '"),
        (["a", 3], "what chunk 1 stands behind is 3"),
    ):
        with pytest.raises(PromptError, match=why):
            render_chunks(["b", "c"], "Why?", behind=wrong)
    with pytest.raises(PromptError, match="chunk 1 is there twice, behind different texts"):
        render_chunks(["b", "b"], "Why?", behind=["a", None])
    with pytest.raises(PromptError, match="behind is given, but recompute is None"):
        render_chunks(["b"], "Why?", behind=["a"], recompute=None)


def test_what_chunks_stand_behind_travels_as_ids_beside_ids() -> None:
    tokenizer = make_bpe()
    prompt = DepPrompt.from_chunks(
        ["b b", "c"], tokenizer=tokenizer, task="?", recompute=0.2, behind=["a a", None]
    )
    input_ids, params = prompt.to_wire()
    [expected] = get_prompt_tokenizer(tokenizer).encode_elements(["\n\na a"])
    assert params["depcache_behind"] == [list(expected), None]
    again = DepPrompt.from_wire(input_ids, params)
    assert again.recompute == prompt.recompute == Recompute(0.2, behind=(expected, None))
    alone = DepPrompt.from_chunks(["b b", "c"], tokenizer=tokenizer, task="?", recompute=0.2)
    assert alone.to_wire()[0] == input_ids


@pytest.mark.parametrize("select", ["query", "query-context", "mixed", "deviation"])
def test_rows_behind_others_may_be_scored(select: Any) -> None:
    focus: Any = None if select == "deviation" else "settle"
    params = Recompute(select=select, focus=focus, behind=(None, (3, 4))).to_params()
    assert (params["depcache_select"], params["depcache_behind"]) == (select, [None, [3, 4]])
    assert params.get("depcache_focus") == focus
