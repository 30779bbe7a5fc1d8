# SPDX-License-Identifier: Apache-2.0
"""The dependency tree of cached KV: which tokens are cached, where, and who goes first."""

from depcache.cache.copies import TierCopies
from depcache.cache.node import Node, Root
from depcache.cache.policies import EVICTION_POLICIES, EvictionPolicy, make_policy
from depcache.cache.records import Insertion
from depcache.cache.shares import Shares
from depcache.cache.tiers import Tier, TierStack
from depcache.cache.tree import KVTree

__all__ = [
    "EVICTION_POLICIES",
    "EvictionPolicy",
    "Insertion",
    "KVTree",
    "Node",
    "Root",
    "Shares",
    "Tier",
    "TierCopies",
    "TierStack",
    "make_policy",
]
