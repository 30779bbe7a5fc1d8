# SPDX-License-Identifier: Apache-2.0
"""What the settings choose for a cache: its eviction policy, shares, the order of the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from depcache.cache import EVICTION_POLICIES, EvictionPolicy, KVTree, Shares, make_policy
from depcache.config import EVERY_OTHER, Config
from depcache.plan import Scheduler, make_scheduler
from depcache.prompt.roots import owner_of, tenant_of
from sglang_patches.requests.tenants import Namespace


def choose_policy(name: str, config: Config) -> EvictionPolicy:
    """Returns the eviction policy `name`, with the settings of those that look ahead."""
    kind = EVICTION_POLICIES.get(name)
    options: dict[str, Any] = {}
    if kind is not None and kind.looks_ahead:
        options = {"history_weight": config.history_weight, "window": config.lookahead}
    return make_policy(name, **options)


def make_shares(config: Config) -> Shares | None:
    """Returns what tenants keep of every tier; None where nothing is kept from anybody."""
    named = dict(config.tenant_shares)
    default = named.pop(EVERY_OTHER, 0.0)
    if not (default or any(named.values())):
        return None
    return Shares(named, default, lambda namespace: owner_of(namespace.tenant))


def tenants_of(config: Config) -> list[str | None]:
    """Returns the tenants whose names the settings say: everybody's, and those with a share."""
    names = [name for name in config.tenant_shares if name not in ("", EVERY_OTHER)]
    pairs = [pair for name in names for pair in ((name, None), (None, name))]
    return [None, *(tenant_of(*pair) for pair in pairs)]


def make_public(config: Config) -> Callable[[Namespace], Namespace | None] | None:
    """Returns where a tenant's requests may read as well; None where nothing is public."""
    if config.public_salt is None:
        return None
    tenant = tenant_of(config.public_salt, None)
    return lambda namespace: replace(namespace, tenant=tenant)


def make_order(tree: KVTree, config: Config) -> Scheduler | None:
    """Returns what sorts the waiting queue; None leaves SGLang's order."""
    if config.queue_order == "sglang":
        return None
    return make_scheduler(config.queue_order, tree, max_passed=config.max_passed)
