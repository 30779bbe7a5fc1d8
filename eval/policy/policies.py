# SPDX-License-Identifier: Apache-2.0
"""The policies that are compared: those of a server, and the bound that needs the future."""

from __future__ import annotations

from typing import Any

from depcache.cache import policies
from depcache.cache.policies import EVICTION_POLICIES, EvictionPolicy

OFFLINE = "belady"
"""The policy that knows the whole workload, in its order of arrival."""

POLICIES: dict[str, Any] = dict(EVICTION_POLICIES)
if hasattr(policies, "Belady"):
    POLICIES[OFFLINE] = getattr(policies, "Belady")  # noqa: B009


def make_policy(name: str, **options: Any) -> EvictionPolicy:
    """The policy called `name` with its own options."""
    return POLICIES[name](**options)


def looks_ahead(name: str) -> bool:
    """Whether the depth of the queue matters to a policy."""
    return name != OFFLINE and bool(getattr(POLICIES[name], "looks_ahead", False))
