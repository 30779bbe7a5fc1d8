# SPDX-License-Identifier: Apache-2.0
"""A graph, settings and a run of precomputation against a server in memory."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

from depcache.graph.networkx_store import NetworkXStore
from depcache.precompute import (
    GraphSource,
    Precomputer,
    PrecomputeReport,
    PrecomputeSettings,
    select_entities,
)
from tests.depcache.precompute.fake import SYSTEM_LEN, FakeCache

TRIPLES = [(f"e{i}", f"r{i % 3}", f"e{(i * 7 + 3) % 24}") for i in range(24)]
TRIPLES += [("e0", "knows", f"e{i}") for i in range(1, 10)]
NONE = PrecomputeSettings(pruner="none")
WORDS = PrecomputeSettings(pruner="words")


def make_store() -> NetworkXStore:
    store = NetworkXStore()
    store.upsert(TRIPLES)
    return store


def compute(
    server: FakeCache,
    store: NetworkXStore,
    wanted: str = "all",
    settings: PrecomputeSettings = NONE,
    num_workers: int = 1,
    **options,
) -> PrecomputeReport:
    options = {"request_tokens": SYSTEM_LEN + 60, "retry_delays_s": (), **options}
    with server.client() as client:
        job = Precomputer(GraphSource(store, settings), client, **options)
        return job.run(job.plan(select_entities(store, wanted)), num_workers=num_workers)


@contextmanager
def planned(
    server: FakeCache, store: NetworkXStore, state: Path, settings: PrecomputeSettings = NONE
):
    with server.client() as client:
        job = Precomputer(GraphSource(store, settings), client, state=state)
        yield job, job.plan(store.names_by_degree())
