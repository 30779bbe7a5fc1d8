# SPDX-License-Identifier: Apache-2.0
"""Work that several ranks do together, each in a process of its own, over a real process group."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.helpers.ends import SLOWEST_S

Work = Callable[..., Any]


class Processes:
    """Two of them; see `start_two`."""

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self._pool = pool
        self._folder = folder
        self._num_runs = 0

    def run(self, work: Work, *arguments: Any) -> list[Any]:
        """What `work(rank, process group, *arguments)` returns on each rank."""
        self._num_runs += 1
        store = self._folder / f"store-{self._num_runs}"
        found = [self._pool.submit(_join, rank, store, work, arguments) for rank in range(2)]
        return [each.result(SLOWEST_S) for each in found]


@contextmanager
def start_two(folder: Path) -> Iterator[Processes]:
    """Two processes that wait for work; each job takes one."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        yield Processes(pool, folder)


def _join(rank: int, store: Path, work: Work, arguments: tuple[Any, ...]) -> Any:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=SLOWEST_S),
    )
    try:
        return work(rank, dist.group.WORLD, *arguments)
    finally:
        dist.destroy_process_group()
