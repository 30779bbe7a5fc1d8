# SPDX-License-Identifier: Apache-2.0
"""What the settings choose for a cache."""

from __future__ import annotations

import pytest

from depcache.cache import EVICTION_POLICIES, KVTree, make_policy
from depcache.config import Config
from depcache.plan import SCHEDULERS
from sglang_patches.choices import choose_policy, make_order


@pytest.mark.parametrize("name", sorted(EVICTION_POLICIES))
def test_a_policy_gets_the_settings_that_it_knows(name: str) -> None:
    policy = choose_policy(name, Config(history_weight=0.25, lookahead=7))
    assert policy.name == name
    if policy.looks_ahead:
        assert policy.window == 7


def test_an_unknown_policy_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="spiral"):
        choose_policy("spiral", Config())


def test_the_queue_is_sorted_only_where_it_is_asked_for() -> None:
    tree = KVTree(make_policy("lru"))
    assert make_order(tree, Config()) is None


@pytest.mark.parametrize("name", sorted(SCHEDULERS.keys() - {"fcfs"}))
def test_every_order_but_that_of_arrival_can_be_chosen(name: str) -> None:
    config = Config.model_validate({"queue_order": name, "max_passed": 3})
    order = make_order(KVTree(make_policy("lru")), config)
    assert order is not None
    assert (order.name, order.max_passed) == (name, 3)
