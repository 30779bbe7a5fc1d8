# SPDX-License-Identifier: Apache-2.0
"""The policies that are compared: those of a server, and two bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from depcache.cache import policies
from depcache.cache.policies import Belady, EvictionPolicy

OFFLINE = "belady"
"""Belady's rule with the whole workload known, in its order of arrival."""

ONLINE = "belady_queue"
"""Belady's rule with the waiting queue known: what look-ahead alone is worth."""

POLICIES: dict[str, Callable[..., EvictionPolicy]] = {**policies.POLICIES, ONLINE: Belady}


def make_policy(name: str, **options: Any) -> EvictionPolicy:
    """The policy called `name` with its own options."""
    return POLICIES[name](**options)


def looks_ahead(name: str) -> bool:
    """Whether the depth of the queue matters to a policy."""
    return name != OFFLINE and make_policy(name).looks_ahead
