# SPDX-License-Identifier: Apache-2.0
"""What the settings choose for a cache: its eviction policy and the order of the queue."""

from __future__ import annotations

from typing import Any

from depcache.cache import EVICTION_POLICIES, EvictionPolicy, KVTree, make_policy
from depcache.config import Config
from depcache.plan import Scheduler, make_scheduler


def choose_policy(name: str, config: Config) -> EvictionPolicy:
    """Returns the eviction policy `name`, with the settings of those that look ahead."""
    kind = EVICTION_POLICIES.get(name)
    options: dict[str, Any] = {}
    if kind is not None and kind.looks_ahead:
        options = {"history_weight": config.history_weight, "window": config.lookahead}
    return make_policy(name, **options)


def make_order(tree: KVTree, config: Config) -> Scheduler | None:
    """Returns what sorts the waiting queue; None leaves SGLang's order."""
    if config.queue_order == "sglang":
        return None
    return make_scheduler(config.queue_order, tree, max_passed=config.max_passed)
