# SPDX-License-Identifier: Apache-2.0
"""From a question to relation paths: stores, linking, expansion, pruning, and building a graph."""

from depcache.graph.base import Change, Counts, Edge, GraphStore, Neighbourhood, Triple
from depcache.graph.stores import open_store

__all__ = ["Change", "Counts", "Edge", "GraphStore", "Neighbourhood", "Triple", "open_store"]
