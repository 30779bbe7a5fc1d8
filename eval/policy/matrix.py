# SPDX-License-Identifier: Apache-2.0
"""Which replays make up a report, and running them on several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from depcache.plan.schedule import FCFS
from depcache.plan.segments import SegmentTable
from eval.policy.policies import OFFLINE, looks_ahead
from eval.policy.prepared import read_prepared
from eval.policy.replay import Outcome, Replay, ReplaySettings
from eval.policy.workloads import PolicySpec

TOKEN_BYTES = 131_072
"""KV of one token of Llama-3-8B: 32 layers x 8 heads x 128 x (key, value) x 2 bytes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay.

    file      prepared workload of `spec`
    gb        capacity in GB of 2**30 bytes; None: it is a share of the working set
    share     that share
    settings  their `capacity` in tokens, from either
    """

    spec: PolicySpec
    file: Path
    gb: float | None
    share: float | None
    settings: ReplaySettings


@dataclass(frozen=True, slots=True)
class Grid:
    """What is varied. Capacities are in GB, shares in parts of 1.

    depths     first the depth of the main table; the others for what depends on it only
    scheduled  policies that the reordering schedulers are combined with
    scheduled_at  capacities at which they are, in GB or as shares; empty: at all
    """

    gigabytes: tuple[float, ...]
    shares: tuple[float, ...]
    policies: tuple[str, ...]
    schedulers: tuple[str, ...]
    scheduled: tuple[str, ...]
    depths: tuple[int, ...]
    scheduled_at: tuple[float, ...] = ()


def to_tokens(gb: float) -> int:
    """Tokens of Llama-3-8B that fit into `gb` GB."""
    return int(gb * 2**30 / TOKEN_BYTES)


def make_cells(
    spec: PolicySpec, file: Path, working_set: int, grid: Grid, settings: ReplaySettings
) -> list[Cell]:
    """All replays of one workload; `settings` gives what is not varied."""
    capacities = [(gb, None, to_tokens(gb)) for gb in grid.gigabytes]
    capacities += [(None, share, int(share * working_set)) for share in grid.shares]
    cells: list[Cell] = []
    for gb, share, capacity in capacities:
        is_scheduled = not grid.scheduled_at or (gb or share) in grid.scheduled_at
        for policy, scheduler, depth in _variants(grid, is_scheduled):
            varied = replace(
                settings,
                capacity=capacity,
                policy=policy,
                scheduler=scheduler,
                queue_depth=depth,
            )
            cells.append(Cell(spec, file, gb, share, varied))
    return cells


def _variants(grid: Grid, is_scheduled: bool) -> Iterator[tuple[str, str, int]]:
    """Policy, scheduler and depth; combinations that equal another one are left out."""
    for number, depth in enumerate(grid.depths):
        for policy in grid.policies:
            if number == 0 or looks_ahead(policy):
                yield policy, FCFS, depth
        for scheduler in grid.schedulers:
            # A queue of one cannot be reordered; Belady's future is the order of arrival.
            if is_scheduled and scheduler != FCFS and depth > 1:
                for policy in grid.scheduled:
                    if policy != OFFLINE:
                        yield policy, scheduler, depth


def run_cells(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome | str]]:
    """Every cell with its outcome, in the order they end; a text says why a cell was not run."""
    if jobs == 1:
        for cell in cells:
            yield cell, run_cell(cell)
        return
    # Started afresh: a process that holds threads (the progress bar's) must not be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(run_cell, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()


def run_cell(cell: Cell) -> Outcome | str:
    """Replay one cell."""
    tables = _load(cell.file)
    needed = max(table.task_start for table in tables) + cell.settings.private_tokens
    if cell.settings.capacity < needed:
        return f"a request takes up to {needed:,} tokens, the pool has {cell.settings.capacity:,}"
    return Replay(tables, cell.settings).run()


@lru_cache(maxsize=1)
def _load(file: Path) -> list[SegmentTable]:
    """The tables of a workload; cells of one workload come together."""
    return read_prepared(file).tables()
