# SPDX-License-Identifier: Apache-2.0
"""Triples as a graph that a retriever takes."""

from __future__ import annotations

from collections.abc import Iterable

from depcache.graph.base import GraphStore
from depcache.graph.stores import open_store
from eval.sets import Triple


def hold(triples: Iterable[Triple]) -> GraphStore:
    """These triples in memory."""
    store = open_store("networkx:")
    store.upsert(triples)
    return store
