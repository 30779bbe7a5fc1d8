# SPDX-License-Identifier: Apache-2.0
"""Our keys in a request, and the one that is no dependency data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from depcache.errors import PromptError
from sglang_patches.requests.params import (
    MATCH,
    custom_params_of,
    drop_match,
    has_dependencies,
    has_keys,
    read_match,
    without_match,
)

OUTLINE = {"depcache_version": 2, "depcache_outline": {}}


def request(custom_params: Any) -> Any:
    return SimpleNamespace(sampling_params={"custom_params": custom_params, "n": 1})


@pytest.mark.parametrize(
    ("params", "has"),
    [
        (None, False),
        ({}, False),
        ({"mine": 1, 3: 4}, False),
        ({MATCH: False}, False),
        ({MATCH: "yes"}, False),
        (OUTLINE, True),
        ({MATCH: True, **OUTLINE}, True),
        ([MATCH], False),
        ("depcache_outline", False),
    ],
)
def test_only_dependency_data_makes_a_dependency_prompt(params: Any, has: bool) -> None:
    assert has_keys(params) == has == has_dependencies(request(params))
    assert custom_params_of(request(params)) == params


@pytest.mark.parametrize("sampling", [None, [], [{"custom_params": OUTLINE}], "x"])
def test_what_holds_no_parameters_has_none(sampling: Any) -> None:
    obj: Any = SimpleNamespace(sampling_params=sampling)
    assert custom_params_of(obj) is None and not has_dependencies(obj)
    drop_match(obj)
    assert obj.sampling_params is sampling


def test_the_key_says_yes_no_or_nothing() -> None:
    found = [read_match(each) for each in (None, {}, {MATCH: None}, {MATCH: True}, {MATCH: False})]
    assert found == [None, None, None, True, False]
    assert read_match([MATCH]) is None
    assert without_match({MATCH: 3, "mine": 1}) == {"mine": 1} and without_match(None) == {}


@pytest.mark.parametrize("value", [0, 1, "true", [], {}, 0.5])
def test_anything_else_is_refused(value: Any) -> None:
    for refuse in (lambda: read_match({MATCH: value}), lambda: drop_match(request({MATCH: value}))):
        with pytest.raises(PromptError, match=r"depcache_match is .*: send true or false"):
            refuse()


def test_the_scheduler_does_not_get_the_key() -> None:
    obj = request({MATCH: False})
    drop_match(obj)
    assert obj.sampling_params == {"custom_params": None, "n": 1}
    obj = request({MATCH: True, "mine": 1})
    drop_match(obj)
    assert obj.sampling_params == {"custom_params": {"mine": 1}, "n": 1}
    # Beside dependency data it is a mistake, which the reader of these says.
    obj = request({MATCH: True, **OUTLINE})
    drop_match(obj)
    assert obj.sampling_params["custom_params"] == {MATCH: True, **OUTLINE}
