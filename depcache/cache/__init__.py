# SPDX-License-Identifier: Apache-2.0
"""The dependency tree of cached KV: which tokens are cached, where, and who goes first."""

from depcache.cache.lower import LowerCopies
from depcache.cache.node import Node
from depcache.cache.policies import EVICTION_POLICIES, EvictionPolicy, make_policy
from depcache.cache.tree import Insertion, KVTree

__all__ = [
    "EVICTION_POLICIES",
    "EvictionPolicy",
    "Insertion",
    "KVTree",
    "LowerCopies",
    "Node",
    "make_policy",
]
