# SPDX-License-Identifier: Apache-2.0
"""All tables of a set computed ahead on a real server, and what questions then find of them.

ahead      seconds and tokens of the run that computes them
asked      tokens of the context of every question's prompt, closed, and those that it misses
restarted  the same on a server that has the same disk folder and nothing else
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import depcache
from depcache.errors import ServerError
from depcache.precompute import Precomputer, TableSource
from eval.servers import serve
from eval.tables.sets import SqlQuestion, SqlSet

POOL_TOKENS = 200_000
WAIT_S = 60.0
# All that is computed is written at once, and all that is there is loaded: a small model computes
# faster than a disk reads, so that a server that measures both would load little.
SETTINGS = {
    "host_gb": "2",
    "disk_gb": "4",
    "write_policy": "write_through",
    "load_policy": "always",
}


def measure_ahead(
    tables: SqlSet, model: str, folder: Path, questions: Sequence[SqlQuestion]
) -> dict[str, Any]:
    """Start a server twice, with its disk tier in `folder`. Raises ServerError."""
    settings = {**SETTINGS, "disk_folder": str(folder / "disk")}
    found: dict[str, Any] = {"set": tables.name, "tables": len(tables.catalog)}
    for name in ("asked", "restarted"):
        log = folder / f"{name}.log"
        with (
            serve(model, log, pool_tokens=POOL_TOKENS, settings=settings) as url,
            depcache.Client(url) as client,
        ):
            if name == "asked":
                found["ahead"] = _compute(client, tables)
                _wait_until_written(client)
            found[name] = _ask(client, tables, questions)
    return found


def _compute(client: depcache.Client, tables: SqlSet) -> dict[str, Any]:
    started = time.perf_counter()
    job = Precomputer(TableSource(tables.catalog), client)
    report = job.run(job.plan(), num_workers=1)
    seconds = time.perf_counter() - started
    return {
        "seconds": round(seconds, 2),
        "requests": report.num_requests,
        "computed": report.num_missed,
        "cached": report.num_cached,
        "failures": sum(report.failures.values()),
    }


def _wait_until_written(client: depcache.Client) -> None:
    client.persist()
    end = time.monotonic() + WAIT_S
    while (disk := client.status()["cache"]["disk"])["waiting_tokens"]:
        if time.monotonic() > end:
            raise ServerError(f"the disk tier was not written in {WAIT_S:g} s: {disk}")
        time.sleep(0.1)


def _ask(
    client: depcache.Client, tables: SqlSet, questions: Sequence[SqlQuestion]
) -> dict[str, Any]:
    context = missed = loaded = 0
    for question in questions:
        reply = client.ask_tables(tables.catalog, question.gold, question.text, max_tokens=1)
        assert reply.depcache is not None
        context += reply.depcache.context_tokens
        missed += reply.depcache.missed
        loaded += reply.depcache.loaded
    return {"questions": len(questions), "context": context, "missed": missed, "loaded": loaded}
