# SPDX-License-Identifier: Apache-2.0
"""How much of what comes from disk a queue hides: the same prompts, more and more of them at once.

Their KV is on disk and nowhere else. A request fetches it from the moment it enters the queue, so
whatever runs before it hides some of that. The server counts how long KV was on its way, and for
how long of that a request could have run and nothing else did.

    trees    facts as trees
    between  the same, each behind a prompt that is nowhere and has to be computed
    fused    facts as rows, of which a share is computed again
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

from rich.table import Table

from depcache.prompt.recompute import Recompute
from eval.tiers.phases import KEPT, Answered, TierServer
from eval.tiers.prompts import TierPrompt

AT_ONCE = (1, 2, 4, 8, 16)
BETWEEN = "between"
# Pinned: else rows that nobody has asked for before stay flat.
KINDS = {"trees": None, BETWEEN: None, "fused": Recompute(share=0.15, is_pinned=True)}
_RECOMPUTES = tuple(dict.fromkeys(KINDS.values()))  # what is kept once, of all kinds
_FRESH = 1000  # versions from here on are asked once


def measure_hidden(
    server: TierServer,
    prompts: Sequence[TierPrompt],
    *,
    rounds: int,
    on_step: Callable[[str], None] = lambda text: None,
    between: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One row for each kind and number at once, all rounds of it together.

    between  called when all that is cached is on disk, before each turn

    fetch_s  seconds in which KV was on its way for a request, summed over requests
    wait_s   of these, seconds in which the request could have run and nothing else did
    hidden   share of `fetch_s` that is not `wait_s`; None where nothing was fetched
    loaded   tokens that came from disk
    """
    for recompute in _RECOMPUTES:
        for prompt in prompts:
            server.ask(prompt, KEPT, recompute=recompute)
            on_step("computed")
    server.persist()
    fresh = count(_FRESH)
    rows = {
        (kind, at_once): {"kind": kind, "at_once": at_once, "requests": 0, "loaded": 0}
        | {"fetch_s": 0.0, "wait_s": 0.0}
        for kind in KINDS
        for at_once in AT_ONCE
    }
    times: dict[tuple[str, int], list[float]] = {key: [] for key in rows}
    for _ in range(rounds):
        for key, row in rows.items():
            kind, at_once = key
            ask = partial(server.ask, recompute=KINDS[kind])
            server.forget()
            between()
            before = server.stats()["tiers"]["disk"]
            version = next(fresh)
            with ThreadPoolExecutor(at_once) as pool:
                waiting: list[Future[Answered]] = []
                computed: list[Future[Answered]] = []
                for prompt in prompts:
                    if kind == BETWEEN:
                        computed.append(pool.submit(ask, prompt, version))
                    waiting.append(pool.submit(ask, prompt, KEPT))
                answers = [each.result() for each in waiting]
                for each in computed:
                    each.result()  # raises what went wrong
            after = server.stats()["tiers"]["disk"]
            times[key] += [each.ttft_ms for each in answers]
            row["requests"] += len(answers)
            row["loaded"] += after["loaded"] - before["loaded"]
            row["fetch_s"] += after["fetch_seconds"] - before["fetch_seconds"]
            row["wait_s"] += after["wait_seconds"] - before["wait_seconds"]
            on_step(f"{kind}, {at_once} at once")
    return [
        row
        | {
            "fetch_s": round(row["fetch_s"], 4),
            "wait_s": round(row["wait_s"], 4),
            "hidden": round(1 - row["wait_s"] / row["fetch_s"], 4) if row["fetch_s"] else None,
            "ttft_ms": round(statistics.median(times[key]), 1),
        }
        for key, row in rows.items()
    ]


def num_hidden_steps(num_prompts: int, rounds: int) -> int:
    """Steps of `measure_hidden`, for a progress bar."""
    return len(_RECOMPUTES) * num_prompts + len(KINDS) * rounds * len(AT_ONCE)


def make_hidden_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows, for a terminal."""
    table = Table(
        "kind", "at once", "on its way, ms a request", "waited, ms", "hidden %", "TTFT ms"
    )
    for row in rows:
        table.add_row(
            row["kind"],
            str(row["at_once"]),
            f"{1e3 * row['fetch_s'] / row['requests']:.1f}",
            f"{1e3 * row['wait_s'] / row['requests']:.1f}",
            "" if row["hidden"] is None else f"{100 * row['hidden']:.0f}",
            f"{row['ttft_ms']:.0f}",
        )
    return table
