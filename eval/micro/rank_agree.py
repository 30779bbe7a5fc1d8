# SPDX-License-Identifier: Apache-2.0
"""What a pass of the scheduler pays so that ranks know the same of their disks: µs of `agree`.

`python -m eval.micro.rank_agree [--ranks N] [--passes N] [--json FILE]`

Each rank is a process with a disk tier of its own, over a group of gloo on this machine. *quiet*
passes have nothing to tell; before *stored* ones a value was given to be stored, so outcomes are
told too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch.distributed as dist

from eval.output import write_rows
from sglang_patches.ranks import RankGroup
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.ranked import RankedDiskTier
from sglang_patches.tiers.disk.value import Entry
from sglang_patches.tiers.open import SWITCH_S
from sglang_patches.tiers.rows import RowShape

ROWS = RowShape(
    num_layers=4, num_heads=2, head_dim=64, dtype="bfloat16", element_bytes=2, start_layer=0
)
NUM_OWN = 8  # tokens of a value


def time_passes(rank: int, num_ranks: int, folder: str, num_passes: int) -> dict[str, list[float]]:
    """Seconds of each pass on one rank, by what was told in it."""
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    fingerprint = Fingerprint({"rank": f"[{rank}, {num_ranks}, 0, 1]"}, ROWS)
    tier = RankedDiskTier(RankGroup(dist.group.WORLD), fingerprint, folder, 1 << 30)
    namespace = fingerprint.namespace_digest((None, "tree"))
    rows = np.zeros((NUM_OWN, ROWS.num_bytes), np.uint8)
    found: dict[str, list[float]] = {"quiet": [], "stored": []}
    sys.setswitchinterval(SWITCH_S)  # as on a server
    for kind, times in found.items():
        for number in range(num_passes):
            if kind == "stored":
                path = np.arange(number, number + NUM_OWN, dtype="<i4").tobytes()
                tier.store(Entry(namespace, path, NUM_OWN, 0), rows)
            dist.barrier()
            start = time.perf_counter()
            tier.agree()
            times.append(time.perf_counter() - start)
            tier.poll()
    tier.close()
    dist.destroy_process_group()
    return found


def main() -> None:
    """Print the median and the 95th percentile of each kind of pass, on the first rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--passes", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.ranks, mp_context=context) as pool,
    ):
        asked = [
            pool.submit(time_passes, rank, arguments.ranks, folder, arguments.passes)
            for rank in range(arguments.ranks)
        ]
        first, *_ = [each.result() for each in asked]
    rows = []
    for kind, times in first.items():
        us = [1e6 * each for each in times[len(times) // 10 :]]
        row = {"pass": kind, "us": round(statistics.median(us), 1)}
        row["us_95"] = round(statistics.quantiles(us, n=20)[-1], 1)
        rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    write_rows(
        arguments, f"python -m eval.micro.rank_agree --ranks {arguments.ranks}", started, rows
    )


if __name__ == "__main__":
    main()
