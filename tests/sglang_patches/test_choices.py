# SPDX-License-Identifier: Apache-2.0
"""What the settings choose for a cache."""

from __future__ import annotations

import re

import pytest

from depcache.cache import EVICTION_POLICIES, KVTree, make_policy
from depcache.config import Config, load_config
from depcache.errors import ConfigError
from depcache.plan import SCHEDULERS
from depcache.prompt.roots import tenant_of
from sglang_patches.choices import choose_policy, make_order, make_shares, tenants_of
from sglang_patches.requests.tenants import Namespace


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


def test_shares_are_of_salts_and_extra_keys() -> None:
    shares = make_shares(Config(tenant_shares={"acme": 0.3, "": 0.2, "*": 0.05}))
    assert shares is not None
    tree = KVTree(make_policy("lru"))

    def share_of(salt: str | None, extra_key: str | None) -> float:
        namespace = Namespace(tenant_of(salt, extra_key), adapter="some")
        return shares.share_of(shares.key_of(tree.root(namespace)))

    assert share_of("acme", None) == share_of("acme", "more") == share_of(None, "acme") == 0.3
    assert share_of(None, None) == 0.2
    assert share_of("acme2", None) == share_of("ac", "me") == share_of(None, "\x1f4:acme") == 0.05


def test_tenants_are_named_by_the_salt_or_by_the_extra_key() -> None:
    assert tenants_of(Config(tenant_shares={"acme": 0.3, "": 0.2, "*": 0.05})) == [
        None,
        tenant_of("acme", None),
        tenant_of(None, "acme"),
    ]
    assert tenants_of(Config()) == [None]


@pytest.mark.parametrize("shares", [{}, {"*": 0.0}, {"acme": 0.0}])
def test_no_share_is_no_shares(shares: dict[str, float]) -> None:
    assert make_shares(Config(tenant_shares=shares)) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"a": 0.7, "b": 0.4, "*": 1}', "add up to 1.1"),
        ('{"a": 1.5}', "less than or equal to 1"),
        ('{"a": -0.1}', "greater than or equal to 0"),
        ('{"a": "much"}', "tenant_shares"),
        ("[0.5]", "tenant_shares"),
        ("half", "tenant_shares"),
    ],
)
def test_shares_that_cannot_be_are_refused(
    written: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPCACHE_TENANT_SHARES", written)
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config()
