# SPDX-License-Identifier: Apache-2.0
"""The generator of spoilt requests leaves no field of ours out, and knows a good refusal."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from depcache.prompt.wire import make_schema, parse_wire
from depcache.prompt.wire_forms import FUSED_KEYS
from eval.soak.fuzz import (
    ALMOST,
    PROMPT_ROUTES,
    STOCK_ROUTES,
    VALUES,
    Target,
    draw,
    make_targets,
    one_by_one,
    what_is_wrong,
    wire_fields,
)


def openapi() -> dict[str, Any]:
    """As a server publishes it, but for most of the keys of its models."""
    nothing: dict[str, Any] = {}
    limits = [{"name": "limit", "in": "query"}, {"name": "format", "in": "query"}]
    paths = {route: {"post": nothing} for route in PROMPT_ROUTES}
    models = {
        "GenerateReqInput": ("text", "input_ids", "sampling_params", "extra_key", "stream"),
        "CompletionRequest": ("prompt", "custom_params", "cache_salt", "max_tokens"),
        "ChatCompletionRequest": ("messages", "custom_params", "input_ids", "n"),
    }
    return {
        "paths": {
            **paths,
            "/depcache/tree": {"get": {"parameters": limits}},
            "/depcache/stats": {"get": nothing},
            "/flush_cache": {"post": {"parameters": [{"name": "timeout", "in": "query"}]}},
        },
        "components": {
            "schemas": {
                name: {"properties": dict.fromkeys(keys, nothing)} for name, keys in models.items()
            }
        },
    }


@pytest.fixture
def targets() -> list[Target]:
    return make_targets(openapi())


def test_every_field_of_the_wire_is_spoilt_on_every_route(targets: list[Target]) -> None:
    forms = make_schema()["$defs"].values()
    fields = {key for form in forms for key in form.get("properties", ())}
    assert set(wire_fields()) == fields
    for route in (*PROMPT_ROUTES, *STOCK_ROUTES):
        spoilt = {place[-1] for t in targets if t.route == route for place in t.places}
        assert fields | {"custom_params"} <= spoilt


def test_query_parameters_come_from_the_openapi_and_only_of_our_routes(
    targets: list[Target],
) -> None:
    assert [t.places for t in targets if t.method == "GET"] == [
        (("query", "limit"), ("query", "format"))
    ]
    assert not any(target.route == "/flush_cache" for target in targets)


def test_our_routes_take_all_keys_of_a_body_and_sglangs_only_what_we_read(
    targets: list[Target],
) -> None:
    def keys(route: str) -> set[str]:
        return {t_place[1] for t in targets if t.route == route for t_place in t.places}

    assert {"max_tokens", "n", "messages", "prompt", "extra_key"} <= keys("/depcache/explain")
    assert "stream" not in keys("/generate")
    assert "max_tokens" not in keys("/v1/completions")


def test_a_route_of_ours_that_nobody_told_us_of_is_an_error() -> None:
    published = openapi()
    published["paths"]["/depcache/new"] = {"post": {"requestBody": {"required": True}}}
    with pytest.raises(ValueError, match="/depcache/new"):
        make_targets(published)
    del published["paths"]["/depcache/new"], published["paths"]["/depcache/explain"]
    with pytest.raises(ValueError, match="explain is gone"):
        make_targets(published)


def test_each_field_meets_each_kind_of_wrong(targets: list[Target]) -> None:
    cases = list(one_by_one(targets))
    places = sum(len(target.places) for target in targets)
    kinds = len(VALUES)
    assert places * (kinds - 1) < len(cases) <= places * kinds
    whole = list(one_by_one(targets, is_whole=True))
    assert len(whole) > 2 * len(cases)
    assert {case.name for case in cases} <= {case.name for case in whole}


def test_fused_requests_are_good_on_every_route_and_nearly_good_where_they_are_spoilt(
    targets: list[Target],
) -> None:
    fused = [target for target in targets if target.is_fused]
    assert {target.route for target in fused} == {*PROMPT_ROUTES, *STOCK_ROUTES}
    assert set(ALMOST) >= FUSED_KEYS
    for target in fused:
        assert target.body is not None
        inner = target.body.get("sampling_params", target.body)["custom_params"]
        wire = parse_wire(inner)
        assert wire is not None and wire.recompute is not None
        assert {place[-1] for place in target.places} >= FUSED_KEYS
    drawn = [draw(random.Random(i), targets) for i in range(3000)]
    found = [case for case in drawn if case.is_fused]
    assert len(found) > 600
    for key in FUSED_KEYS:
        values = {json.dumps(value) for value in ALMOST[key]}
        assert sum(f'"{key}": {value}' in (c.content or "") for c in found for value in values) > 5


def test_a_spoilt_request_differs_in_that_field_only() -> None:
    body = {"text": "a", "sampling_params": {"custom_params": {"depcache_version": 1, "b": 2}}}
    target = Target("t", "POST", "/generate", body, ())
    place = ("body", "sampling_params", "custom_params", "depcache_version")
    case = target.spoil({place: [1]})
    assert json.loads(case.content or "") == {
        "text": "a",
        "sampling_params": {"custom_params": {"depcache_version": [1], "b": 2}},
    }
    assert case.name == "POST t: sampling_params.custom_params.depcache_version = [1]"
    assert body["sampling_params"]["custom_params"]["depcache_version"] == 1


def test_of_two_fields_in_one_another_the_outer_is_spoilt() -> None:
    target = Target("t", "POST", "/generate", {"a": {"b": 1}}, ())
    case = target.spoil({("body", "a"): None, ("body", "a", "b"): 5})
    assert json.loads(case.content or "") == {"a": None}


def test_a_plain_request_of_sglangs_has_no_other_field_spoilt(targets: list[Target]) -> None:
    drawn = [draw(random.Random(i), targets) for i in range(3000)]
    for case in drawn:
        if "custom_params = " in case.name and not case.route.startswith("/depcache/"):
            assert case.name.count(" = ") == 1
    for target in targets:
        if target.route in STOCK_ROUTES:
            assert len(target.alone) == 1
            assert ("body", "sampling_params") not in target.places


def test_a_query_is_spoilt_in_the_url() -> None:
    target = Target("/depcache/tree", "GET", "/depcache/tree", None, (("query", "limit"),))
    case = target.spoil({("query", "limit"): {"a": 1}})
    assert case.route == "/depcache/tree?limit=%7B%22a%22%3A+1%7D"
    assert case.content is None


def test_the_same_seed_draws_the_same_and_one_to_three_fields(targets: list[Target]) -> None:
    first = [draw(random.Random(i), targets) for i in range(200)]
    assert first == [draw(random.Random(i), targets) for i in range(200)]
    assert {case.name.count(" = ") for case in first} == {1, 2, 3}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (200, "anything"),
        (400, '{"object": "error", "message": "depcache_version is 2: send 1"}'),
        (400, '{"error": {"message": "send a list"}}'),
        (400, '{"error": "invalid type: a number"}'),
        (422, '{"message": "limit is too large"}'),
    ],
)
def test_an_answer_or_a_refusal_with_its_reason_is_right(status: int, text: str) -> None:
    assert what_is_wrong(status, text) is None


@pytest.mark.parametrize(
    ("status", "text", "wrong"),
    [
        (500, "Internal Server Error", "HTTP 500"),
        (503, '{"message": "busy"}', "HTTP 503"),
        (302, "", "HTTP 302"),
        (400, "no JSON", "without JSON"),
        (400, "[]", "without a message"),
        (400, '{"message": " "}', "without a message"),
        (400, '{"message": "Traceback (most recent call last)"}', "traceback"),
    ],
)
def test_everything_else_is_wrong(status: int, text: str, wrong: str) -> None:
    assert wrong in (what_is_wrong(status, text) or "")
