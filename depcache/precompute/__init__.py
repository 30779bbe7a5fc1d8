# SPDX-License-Identifier: Apache-2.0
"""Fill a running server's cache with the trees of a graph, before anybody asks about them.

    with open_store("facts.db") as store, Client(url) as client:
        job = Precomputer(store, client, state="precompute.jsonl")
        plan = job.plan(select_entities(store, "top:1000"))
        print(plan.estimate)
        print(job.run(plan))

`plan` changes nothing; `run` goes on where a run before it stopped. `invalidate` is for after a
change of the graph:

    change = store.upsert(triples)
    invalidate(store, client, change.entities, state="precompute.jsonl")
"""

from depcache.precompute.entities import select_entities
from depcache.precompute.estimate import Estimate, TierCapacity
from depcache.precompute.invalidation import Invalidation, find_trees, invalidate
from depcache.precompute.job import PrecomputePlan, Precomputer
from depcache.precompute.report import PrecomputeReport, Progress
from depcache.precompute.settings import PrecomputeSettings

__all__ = [
    "Estimate",
    "Invalidation",
    "PrecomputePlan",
    "PrecomputeReport",
    "PrecomputeSettings",
    "Precomputer",
    "Progress",
    "TierCapacity",
    "find_trees",
    "invalidate",
    "select_entities",
]
