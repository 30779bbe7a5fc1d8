# SPDX-License-Identifier: Apache-2.0
"""Salt and extra key of an OpenAI request become one tenant, which no other pair becomes."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from depcache.errors import PromptError
from sglang_patches.hooks.serving_base import join_salt

pytestmark = pytest.mark.sglang


def joined(**fields: Any) -> Any:
    def original(*_: Any) -> None:
        raise AssertionError("SGLang writes one behind the other")

    return join_salt(original, None, SimpleNamespace(**fields))


def test_no_two_pairs_are_one_tenant() -> None:
    words = (None, "a", "b", "ab", "ba")
    pairs = list(product(words, words))
    keys = [joined(cache_salt=salt, extra_key=key) for salt, key in pairs]
    assert len(set(keys)) == len(pairs)


def test_a_request_without_either_has_none() -> None:
    assert joined() is None
    assert joined(cache_salt=None, extra_key=None) is None


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_list_is_refused(field: str) -> None:
    with pytest.raises(PromptError):
        joined(**{field: ["a"]})
