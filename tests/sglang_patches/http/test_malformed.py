# SPDX-License-Identifier: Apache-2.0
"""Malformed requests of any kind: HTTP 400 with the reason, and the server lives on (P6)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depcache.prompt.recompute import SELECTS

pytestmark = pytest.mark.sglang

TOKENS = list(range(10, 40))


def ids_form(**changes: Any) -> dict[str, Any]:
    good = {
        "depcache_version": 1,
        "depcache_layout": "tree",
        "depcache_system_len": 4,
        "depcache_segment_lens": [3, 2, 2, 5],
        "depcache_segment_parents": [-1, 0, 0, -1],
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def joined(*joins: Any, **changes: Any) -> dict[str, Any]:
    return ids_form(
        depcache_version=2,
        depcache_segment_joins=list(joins),
        depcache_segment_parents=[-1, -1, -1, -1],
        **changes,
    )


def text_form(paths: Any, **changes: Any) -> dict[str, Any]:
    paths = paths if isinstance(paths, str) else json.dumps(paths)
    return {"depcache_version": 1, "depcache_paths": paths, **changes}


def with_ids(custom_params: Any, tokens: Any = TOKENS, **keywords: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 2, "temperature": 0, "custom_params": custom_params}
    return {"input_ids": tokens, "sampling_params": params, **keywords}


def with_text(custom_params: Any, text: Any = "Facts:\na -> b -> c\nwho?") -> dict[str, Any]:
    return {"text": text, "sampling_params": {"max_new_tokens": 2, "custom_params": custom_params}}


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


REQUESTS: dict[str, dict[str, Any]] = {
    "wrong version": with_ids(ids_form(depcache_version=3)),
    "version as text": with_ids(ids_form(depcache_version="1")),
    "version as bool": with_ids(ids_form(depcache_version=True)),
    "no version": with_ids(ids_form(depcache_version=...)),
    "unknown key": with_ids(ids_form(depcache_colour="red")),
    "unknown layout": with_ids(ids_form(depcache_layout="spiral")),
    "layout as int": with_ids(ids_form(depcache_layout=3)),
    "negative system": with_ids(ids_form(depcache_system_len=-1)),
    "system as float": with_ids(ids_form(depcache_system_len=4.0)),
    "system as bool": with_ids(ids_form(depcache_system_len=True)),
    "huge system": with_ids(ids_form(depcache_system_len=10**18)),
    "system beyond 64 bits": with_ids(ids_form(depcache_system_len=10**30)),
    "no system length": with_ids(ids_form(depcache_system_len=...)),
    "no lens": with_ids(ids_form(depcache_segment_lens=...)),
    "no parents": with_ids(ids_form(depcache_segment_parents=...)),
    "lens as text": with_ids(ids_form(depcache_segment_lens="3,2,2,5")),
    "lens as object": with_ids(ids_form(depcache_segment_lens={"0": 3})),
    "lens null": with_ids(ids_form(depcache_segment_lens=None)),
    "lens of text": with_ids(ids_form(depcache_segment_lens=["3", 2, 2, 5])),
    "lens of floats": with_ids(ids_form(depcache_segment_lens=[3.5, 2, 2, 5])),
    "lens of bools": with_ids(ids_form(depcache_segment_lens=[True, 2, 2, 5])),
    "lens with null": with_ids(ids_form(depcache_segment_lens=[3, None, 2, 5])),
    "nested lens": with_ids(ids_form(depcache_segment_lens=[[3], 2, 2, 5])),
    "deeply nested lens": with_ids(ids_form(depcache_segment_lens=deep(200))),
    "empty segment": with_ids(ids_form(depcache_segment_lens=[3, 0, 2, 5])),
    "negative segment": with_ids(ids_form(depcache_segment_lens=[3, -2, 2, 5])),
    "huge segment": with_ids(ids_form(depcache_segment_lens=[3, 10**18, 2, 5])),
    "segment beyond 64 bits": with_ids(ids_form(depcache_segment_lens=[3, 10**40, 2, 5])),
    "sum that wraps": with_ids(ids_form(depcache_segment_lens=[2**62, 2**62, 2**62, 2**62])),
    "a million segments": with_ids(
        ids_form(depcache_segment_lens=[1] * 10**6, depcache_segment_parents=[-1] * 10**6)
    ),
    "fewer lens than parents": with_ids(ids_form(depcache_segment_lens=[3, 2, 2])),
    "no room for a task": with_ids(ids_form(depcache_segment_lens=[3, 2, 2, 19])),
    "longer than the prompt": with_ids(ids_form(depcache_segment_lens=[3, 2, 2, 90])),
    "parent of itself": with_ids(ids_form(depcache_segment_parents=[-1, 1, 0, -1])),
    "parents in a cycle": with_ids(ids_form(depcache_segment_parents=[1, 0, 0, -1])),
    "parent behind its child": with_ids(ids_form(depcache_segment_parents=[-1, 3, 0, -1])),
    "not in pre-order": with_ids(ids_form(depcache_segment_parents=[-1, 0, -1, 0])),
    "parent below -1": with_ids(ids_form(depcache_segment_parents=[-2, 0, 0, -1])),
    "huge parent": with_ids(ids_form(depcache_segment_parents=[-1, 10**18, 0, -1])),
    "parents of text": with_ids(ids_form(depcache_segment_parents=["-1", 0, 0, -1])),
    "siblings that start alike": with_ids(ids_form(), [*range(10, 17), 50, 51, 50, 52, *TOKENS]),
    "joins in version 1": with_ids({**joined([3, 1]), "depcache_version": 1}),
    "joins null": with_ids({**joined(), "depcache_segment_joins": None}),
    "joins as object": with_ids({**joined(), "depcache_segment_joins": {"3": [1]}}),
    "joins as text": with_ids({**joined(), "depcache_segment_joins": "[[3, 1]]"}),
    "joins of ints": with_ids(joined(3, 1)),
    "joins of text": with_ids(joined("3")),
    "joins of null": with_ids(joined(None)),
    "a join of floats": with_ids(joined([3.0, 1])),
    "a join of bools": with_ids(joined([3, True])),
    "a join of text": with_ids(joined(["3", "1"])),
    "a nested join": with_ids(joined([3, [1]])),
    "a deeply nested join": with_ids(joined(deep(200))),
    "an empty join": with_ids(joined([])),
    "a join of nothing": with_ids(joined([3])),
    "a join twice": with_ids(joined([2, 0], [2, 1])),
    "joins in no order": with_ids(joined([3, 0], [2, 1])),
    "a join of itself": with_ids(joined([3, 3])),
    "a join of a later segment": with_ids(joined([1, 0, 2])),
    "a join of an unknown segment": with_ids(joined([3, 7])),
    "a join of a negative segment": with_ids(joined([3, -1])),
    "a join of the same twice": with_ids(joined([3, 1, 1])),
    "a join in no order": with_ids(joined([3, 2, 1])),
    "a join of what another one sees": with_ids(joined([2, 0, 1], [3, 1, 2])),
    "a join of what is above another": with_ids(
        {**joined([3, 0, 1]), "depcache_segment_parents": [-1, 0, 0, -1]}
    ),
    "a join of no root": with_ids({**joined([2, 0]), "depcache_segment_parents": [-1, -1, 1, -1]}),
    "a join of an unknown root": with_ids(joined([9, 0])),
    "a join of a negative root": with_ids(joined([-1, 0])),
    "a join of a huge root": with_ids(joined([10**30, 0])),
    "a join of a huge segment": with_ids(joined([3, 10**30])),
    "a join of too many": with_ids(
        joined(
            [5000, *range(4999)],
            depcache_segment_lens=[1] * 5001,
        )
        | {"depcache_segment_parents": [-1] * 5001},
        [10] * 6000,
    ),
    "a million joins": with_ids(joined(*[[3, 1]] * 10**6)),
    "joins of a fused request": with_ids(
        {**joined([3, 1]), "depcache_layout": "sequential", "depcache_see": "fused"}
    ),
    "both forms": with_ids({**ids_form(), **text_form([["a", "b"]])}),
    "neither form": with_ids({"depcache_version": 1}),
    "no prompt": {"sampling_params": {"custom_params": ids_form()}},
    "empty prompt": with_ids(ids_form(), []),
    "token beyond the vocabulary": with_ids(ids_form(), [*TOKENS[:-1], 10**6]),
    "negative token": with_ids(ids_form(), [-5, *TOKENS[1:]]),
    "token beyond 64 bits": with_ids(ids_form(), [10**30, *TOKENS[1:]]),
    "token as text": with_ids(ids_form(), ["10", *TOKENS[1:]]),
    "prompt longer than the model": with_ids(ids_form(), [10] * 20_000),
    "logprobs of the context": with_ids(ids_form(), return_logprob=True, logprob_start_len=2),
    "text form with ids": with_ids(text_form([["a", "b", "c"]])),
    "ids form with text": with_text(ids_form()),
    "paths that are no JSON": with_text(text_form("[[")),
    "paths as object": with_text(text_form({"a": 1})),
    "paths with a number": with_text(text_form([["a", 1]])),
    "path of nothing": with_text(text_form([[]])),
    "no paths": with_text(text_form([])),
    "path with an empty element": with_text(text_form([["a", "", "c"]])),
    "paths nested deeply": with_text(text_form("[" * 5000 + "]" * 5000)),
    "half a surrogate pair": with_text(text_form('[["\\ud800", "b", "c"]]')),
    "unknown template": with_text(text_form([["a", "b", "c"]], depcache_template="haiku")),
    "facts not in the text": with_text(text_form([["x", "y", "z"]])),
    "facts twice in the text": with_text(
        text_form([["a", "b", "c"]]), "\na -> b -> c\nagain\na -> b -> c\nwho?"
    ),
    "facts with no task behind": with_text(text_form([["a", "b", "c"]]), "Facts:\na -> b -> c"),
}


def message_of(response: httpx.Response) -> str:
    """SGLang nests what the engine refused, and not what the body's types refused."""
    body = response.json()
    error = body.get("error", body)
    return error if isinstance(error, str) else error["message"]  # 0.5.23 has both for types


def assert_lives(served) -> None:
    answer = served.post("/generate", with_ids(ids_form()))
    assert answer.status_code == 200, answer.text
    assert answer.json()["meta_info"]["depcache"]["context_tokens"] == 16


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_request_is_refused_with_a_sentence(served, name: str) -> None:
    # As text, because some of the values are beyond what httpx itself would write.
    response = served.client.post(
        "/generate",
        content=json.dumps(REQUESTS[name]),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 400, response.text[:500]
    message = message_of(response)
    assert 10 < len(message) < 1000
    assert "Traceback" not in message
    assert_lives(served)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_routes_refuse_before_the_stream_begins(served, route: str, stream: bool) -> None:
    body = {"model": "m", "stream": stream, "custom_params": ids_form(depcache_version=7)}
    if route.endswith("chat/completions"):
        body |= {"messages": [{"role": "user", "content": "x"}], "input_ids": TOKENS}
    else:
        body |= {"prompt": TOKENS}
    response = served.post(route, body)
    assert response.status_code == 400
    assert "depcache_version" in response.json()["message"]


def test_a_chat_with_segments_needs_ids(served) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 90}]}
    response = served.post("/v1/chat/completions", {**body, "custom_params": ids_form()})
    assert response.status_code == 400
    assert "input_ids" in response.json()["message"]


def test_one_bad_request_does_not_spoil_its_batch_neighbours(served) -> None:
    body = {
        "input_ids": [TOKENS, TOKENS],
        "sampling_params": [
            {"max_new_tokens": 2, "custom_params": ids_form()},
            {"max_new_tokens": 2, "custom_params": ids_form(depcache_version=9)},
        ],
    }
    assert served.post("/generate", body).status_code == 400
    assert_lives(served)


@pytest.mark.parametrize("body", ["", "[", "[]", "3", '"x"', "null", '{"nonsense": 1}', "{}"])
def test_explain_refuses_what_it_cannot_read(served, body: str) -> None:
    response = served.client.post("/depcache/explain", content=body)
    assert response.status_code == 400, response.text[:300]
    assert response.json()["object"] == "error"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
ALMOST_INTS = st.lists(st.integers(-2, 6), max_size=8) | JSON
FUZZED = st.fixed_dictionaries(
    {"depcache_version": st.sampled_from([1, 2])},
    optional={
        "depcache_layout": st.sampled_from(["tree", "staggered", "sequential"]) | JSON,
        "depcache_system_len": st.integers(-1, 32) | JSON,
        "depcache_segment_lens": ALMOST_INTS,
        "depcache_segment_parents": ALMOST_INTS,
        "depcache_segment_joins": st.lists(ALMOST_INTS, max_size=3) | JSON,
        "depcache_paths": st.text(max_size=20) | JSON,
        "depcache_template": JSON,
    },
)


ALMOST_INDICES = st.lists(st.integers(0, 31), max_size=8, unique=True).map(sorted) | ALMOST_INTS
CHUNK = st.none() | st.lists(st.integers(40, 60), min_size=1, max_size=4)
FUSED_FUZZED = st.fixed_dictionaries(
    {"depcache_see": st.just("fused")},
    optional={
        "depcache_recompute": st.floats(-0.1, 1.1) | JSON,
        "depcache_select": st.sampled_from([*SELECTS, "best"]) | JSON,
        "depcache_selected": ALMOST_INDICES | JSON,
        "depcache_seed": st.integers(-1, 2**32) | JSON,
        "depcache_budget": st.sampled_from(["global", "chunk", "row"]) | JSON,
        "depcache_focus": st.sampled_from(["settle", None]) | JSON,
        "depcache_alpha": st.floats(0, 11) | JSON,
        "depcache_pin": st.booleans() | JSON,
        "depcache_patches": st.booleans() | JSON,
        "depcache_behind": st.lists(CHUNK | st.lists(CHUNK, max_size=3), min_size=2, max_size=2)
        | JSON,
        "depcache_layout": st.sampled_from(["sequential", "tree"]) | JSON,
    },
)


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=FUSED_FUZZED)
def test_fuzzed_fused_parameters_are_answered_or_refused(served, changes: Any) -> None:
    custom_params = {**ids_form(depcache_version=2, depcache_layout=...), **changes}
    response = served.client.post("/generate", json=with_ids(custom_params))
    assert response.status_code in (200, 400), response.text[:500]
    if response.status_code == 200:
        report = response.json()["meta_info"]["depcache"]
        assert report["see"] in ("fused", "flat")
        assert report["prompt_tokens"] == len(TOKENS)
    else:
        assert message_of(response)


@pytest.mark.parametrize("is_whole", [True, False])
def test_two_equal_rows_of_a_fused_request_are_refused(served, is_whole: bool) -> None:
    """They may stand in an exact one; rows that only begin alike may stand in both."""
    row = [10, 11, 12, 13]
    tokens = [1, 2, *row, 20, 21, *(row if is_whole else row[:-1]), 30, 31]
    lens = [4, 2, 4 if is_whole else 3]
    form = ids_form(
        depcache_version=2,
        depcache_layout=...,
        depcache_system_len=2,
        depcache_segment_lens=lens,
        depcache_segment_parents=[-1, -1, -1],
    )
    assert served.post("/generate", with_ids(form, tokens)).status_code == 200
    for pin in (False, True):
        body = with_ids({**form, "depcache_see": "fused", "depcache_pin": pin}, tokens)
        response = served.post("/generate", body)
        assert response.status_code == (400 if is_whole else 200)
        if is_whole:
            assert "rows 0 and 2 of a fused request have the same tokens" in message_of(response)
    assert_lives(served)


def test_rows_of_a_text_may_repeat(served) -> None:
    """It may be somebody else's: a framework's, whose facts the client or the server has found."""
    text = "Facts:\nAda was here.\nBea was there.\nAda was here.\nWho?"
    lens = [len(row) + 1 for row in ("Ada was here.", "Bea was there.", "Ada was here.")]
    outline = {"message": None, "start": 6, "lens": lens, "rows": [1, 1, 1]}
    params = {"depcache_version": 2, "depcache_outline": outline}
    assert served.post("/generate", with_text(params, text)).status_code == 200
    fused = {**params, "depcache_see": "fused", "depcache_pin": True}
    for _ in range(2):
        response = served.post("/generate", with_text(fused, text))
        assert response.status_code == 200
        assert response.json()["meta_info"]["depcache"]["missed"] == 0
    assert_lives(served)


@settings(
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(custom_params=FUZZED)
def test_fuzzed_parameters_are_answered_or_refused(served, custom_params: Any) -> None:
    response = served.client.post("/generate", json=with_ids(custom_params))
    assert response.status_code in (200, 400), response.text[:500]
    if response.status_code == 200:
        assert response.json()["meta_info"]["depcache"]["prompt_tokens"] == len(TOKENS)
    else:
        assert message_of(response)


def test_the_server_lives_after_all_that(served) -> None:
    assert_lives(served)
    cache = served.client.get("/depcache/status").json()["cache"]
    assert cache["free_tokens"] + cache["cached_tokens"] == cache["capacity_tokens"]
