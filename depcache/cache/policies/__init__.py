# SPDX-License-Identifier: Apache-2.0
"""Eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable

from depcache.cache.policies.base import EvictionPolicy
from depcache.cache.policies.lfu import Lfu
from depcache.cache.policies.lru import Lru
from depcache.errors import ConfigError

EVICTION_POLICIES: dict[str, Callable[[], EvictionPolicy]] = {"lru": Lru, "lfu": Lfu}


def make_policy(name: str) -> EvictionPolicy:
    """The policy called `name`; ConfigError lists the choices."""
    try:
        return EVICTION_POLICIES[name]()
    except KeyError:
        choices = ", ".join(EVICTION_POLICIES)
        raise ConfigError(f"unknown eviction policy {name!r}; choose one of {choices}") from None


__all__ = ["EVICTION_POLICIES", "EvictionPolicy", "Lfu", "Lru", "make_policy"]
