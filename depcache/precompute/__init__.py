# SPDX-License-Identifier: Apache-2.0
"""Fill a running server's cache before anybody asks: with trees of a graph, chunks or tables.

    with open_store("facts.db") as store, Client(url) as client:
        job = Precomputer(GraphSource(store), client, state="precompute.jsonl")
        plan = job.plan(select_entities(store, "top:1000"))
        print(plan.estimate)
        print(job.run(plan))

`plan` changes nothing; `run` goes on where a run before it stopped. Text chunks go the same way:

    job = Precomputer(ChunkSource(read_chunks("chunks.jsonl")), client, state="chunks-state.jsonl")
    print(job.run(job.plan()))

Tables of a catalog are a `TableSource`; send what is referred to first, one request at a time:

    job = Precomputer(TableSource(Catalog.read("tables.jsonl")), client)
    print(job.run(job.plan(), num_workers=1))

`invalidate` is for after a change of the graph:

    change = store.upsert(triples)
    invalidate(store, client, change.entities, state="precompute.jsonl")
"""

from depcache.precompute.chunk_file import Chunk, find_predecessors, read_chunks
from depcache.precompute.chunk_source import ChunkSource
from depcache.precompute.entities import select_entities
from depcache.precompute.estimate import Estimate, TierCapacity
from depcache.precompute.graph_source import GraphSource
from depcache.precompute.invalidation import Invalidation, find_trees, invalidate, invalidate_chunks
from depcache.precompute.job import PrecomputePlan, Precomputer
from depcache.precompute.neighbours import Neighbours, find_similar, read_neighbours
from depcache.precompute.report import PrecomputeReport, Progress
from depcache.precompute.settings import PrecomputeSettings
from depcache.precompute.source import Source, Wording
from depcache.precompute.table_invalidation import find_stale, invalidate_tables
from depcache.precompute.table_source import TableSource, read_sets

__all__ = [
    "Chunk",
    "ChunkSource",
    "Estimate",
    "GraphSource",
    "Invalidation",
    "Neighbours",
    "PrecomputePlan",
    "PrecomputeReport",
    "PrecomputeSettings",
    "Precomputer",
    "Progress",
    "Source",
    "TableSource",
    "TierCapacity",
    "Wording",
    "find_predecessors",
    "find_similar",
    "find_stale",
    "find_trees",
    "invalidate",
    "invalidate_chunks",
    "invalidate_tables",
    "read_chunks",
    "read_neighbours",
    "read_sets",
    "select_entities",
]
