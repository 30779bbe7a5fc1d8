# SPDX-License-Identifier: Apache-2.0
"""Eviction policies by name."""

from __future__ import annotations

from typing import Any

from depcache.cache.policies.base import EvictionPolicy
from depcache.cache.policies.belady import Belady
from depcache.cache.policies.cfo import Cfo
from depcache.cache.policies.fifo import Fifo
from depcache.cache.policies.gdsf import Gdsf
from depcache.cache.policies.lacr import Lacr
from depcache.cache.policies.lacr_adaptive import LacrAdaptive
from depcache.cache.policies.lfu import Lfu
from depcache.cache.policies.lru import Lru
from depcache.cache.policies.pgdsf import Pgdsf
from depcache.errors import ConfigError

EVICTION_POLICIES: dict[str, type[EvictionPolicy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "gdsf": Gdsf,
    "pgdsf": Pgdsf,
    "lacr": Lacr,
    "lacr_adaptive": LacrAdaptive,
    "cfo": Cfo,
}
"""Those that a server can run."""

POLICIES: dict[str, type[EvictionPolicy]] = {**EVICTION_POLICIES, "belady": Belady}
"""And the one that needs to know the future, for the simulator."""


def make_policy(name: str, **options: Any) -> EvictionPolicy:
    """The policy called `name`; ConfigError lists the choices.

    options  the policy's own arguments, e.g. `history_weight` of `lacr`
    """
    try:
        make = POLICIES[name]
    except KeyError:
        choices = ", ".join(EVICTION_POLICIES)
        raise ConfigError(f"unknown eviction policy {name!r}; choose one of {choices}") from None
    return make(**options)


__all__ = [
    "EVICTION_POLICIES",
    "POLICIES",
    "Belady",
    "Cfo",
    "EvictionPolicy",
    "Fifo",
    "Gdsf",
    "Lacr",
    "LacrAdaptive",
    "Lfu",
    "Lru",
    "Pgdsf",
    "make_policy",
]
