# SPDX-License-Identifier: Apache-2.0
"""The policies that are compared: those of a server, and the bound that needs the future."""

from __future__ import annotations

from depcache.cache.policies import POLICIES, Belady, make_policy

OFFLINE = Belady.name
"""The policy that knows the whole workload, in its order of arrival."""


def looks_ahead(name: str) -> bool:
    """Whether the depth of the queue matters to a policy."""
    return name != OFFLINE and make_policy(name).looks_ahead


__all__ = ["OFFLINE", "POLICIES", "looks_ahead", "make_policy"]
