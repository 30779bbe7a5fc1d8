# SPDX-License-Identifier: Apache-2.0
"""What an attention plan costs on the host: `python -m eval.micro.mask_plans [--json FILE]`.

The prompt is a GraphRAG prompt of the paper's shape (section 6.1): trees of two-hop paths. A
path is entity, relation, entity, relation, entity; paths of a tree share their root and, where
two relations or entities agree, more. Times are medians in milliseconds, one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eval.output import about, write_report
from eval.timing import host_ms
from flashinfer_masks import (
    Step,
    Structure,
    cascade_runs,
    pack_runs,
    plan_cascade,
    plan_masked,
    plan_runs,
    plan_segments,
)
from flashinfer_masks.reference import count_work


@dataclass(frozen=True)
class Case:
    """One prompt and what the cache holds of it.

    num_trees, num_paths   trees, and two-hop paths in each
    system_len, task_len   tokens
    hit_share              share of paths whose tokens are cached (0 cold, 1 all but the task)
    chunk                  tokens computed per step, from the first miss; 0 for all at once
    """

    name: str
    num_trees: int = 20
    num_paths: int = 30
    system_len: int = 128
    task_len: int = 64
    hit_share: float = 0.0
    chunk: int = 0


CASES = (
    Case("cold"),
    Case("cold, system 1024", system_len=1024),
    Case("half cached", hit_share=0.5),
    Case("90 % cached", hit_share=0.9),
    Case("warm", hit_share=1.0),
    Case("cold, first 512", chunk=512),
    Case("cold, 1 x 600 paths", num_trees=1, num_paths=600),
    Case("cold, 300 x 2 paths", num_trees=300, num_paths=2),
)


def make_step(case: Case, rng: np.random.Generator) -> Step:
    """A random prompt of the case, its hits in random order, and the first step over it."""
    lens: list[int] = []
    parents: list[int] = []
    is_hit: list[bool] = []

    def add(parent: int, num_tokens: int) -> int:
        lens.append(num_tokens)
        parents.append(parent)
        is_hit.append(False)
        return len(lens) - 1

    for _ in range(case.num_trees):
        root = add(-1, int(rng.integers(2, 6)))
        num_left = case.num_paths
        while num_left:
            # One to four paths share the first hop; the rest of each is its own segment.
            num_below = min(num_left, int(rng.integers(1, 5)))
            first_hop = add(root, int(rng.integers(4, 10)))
            for _ in range(num_below):
                path = add(first_hop, int(rng.integers(7, 14)))
                if rng.random() < case.hit_share:
                    is_hit[path] = is_hit[first_hop] = is_hit[root] = True
            num_left -= num_below

    num_tokens = case.system_len + sum(lens) + case.task_len
    structure = Structure.make(num_tokens, case.system_len, np.array(lens), np.array(parents))
    cached = np.zeros(num_tokens, bool)
    cached[: case.system_len] = case.hit_share > 0
    cached[case.system_len : structure.task_start] = np.repeat(is_hit, lens)
    hits = rng.permutation(np.flatnonzero(cached))
    order = np.concatenate((hits, np.flatnonzero(~cached)))
    num_new = min(case.chunk or num_tokens, num_tokens - len(hits))
    return Step(structure, order, len(hits), num_new)


def measure(case: Case, seed: int, num_repeats: int) -> dict[str, Any]:
    """One row of the table: sizes, times, and the area of scores each plan asks a kernel for."""
    step = make_step(case, np.random.default_rng(seed))
    structure = step.structure
    plain = (structure.num_tokens, structure.system_len, structure.lens, structure.parents)
    segments, cascade, masked = plan_segments(step), plan_cascade(step), plan_masked(step)
    runs = plan_runs(step).runs
    few = max(3, num_repeats // 10)  # a byte for every element
    return {
        **asdict(case),
        "num_tokens": structure.num_tokens,
        "num_segments": structure.num_segments,
        "num_new": step.num_new,
        "structure_ms": host_ms(lambda: Structure.make(*plain), num_repeats),
        "step_ms": host_ms(
            lambda: Step(structure, step.order, step.num_prefix, step.num_new), num_repeats
        ),
        "segments_ms": host_ms(lambda: plan_segments(step), num_repeats),
        "cascade_ms": host_ms(lambda: plan_cascade(step), num_repeats),
        "cascade_masks_ms": host_ms(cascade.masks, num_repeats),
        "cascade_pack_ms": host_ms(lambda: pack_runs(cascade_runs(step, cascade)), num_repeats),
        "masked_ms": host_ms(lambda: plan_masked(step), few),
        "runs_ms": host_ms(lambda: plan_runs(step), num_repeats),
        "runs_pack_ms": host_ms(lambda: pack_runs([runs]), num_repeats),
        "segments_requests": segments.num_requests,
        "segments_kv_rows": len(segments.kv_rows),
        "cascade_masked_requests": cascade.masked.num_requests,
        "segments_mega_scores": count_work(segments) / 1e6,
        "cascade_mega_scores": count_work(cascade) / 1e6,
        "masked_mega_scores": count_work(masked) / 1e6,
    }


TIMES = ("structure", "step", "segments", "cascade", "cascade_masks", "cascade_pack")
TIMES += ("masked", "runs", "runs_pack")


def print_table(rows: list[dict[str, Any]]) -> None:
    """Sizes first, then milliseconds, then millions of scores."""
    heads = ["case", "tokens", "segs", "new", "reqs", *TIMES, "Mseg", "Mcasc", "Mmask"]
    table = [heads]
    for row in rows:
        sizes = [row[key] for key in ("num_tokens", "num_segments", "num_new", "segments_requests")]
        times = [f"{row[f'{name}_ms']:.2f}" for name in TIMES]
        work = [f"{row[f'{plan}_mega_scores']:.1f}" for plan in ("segments", "cascade", "masked")]
        table.append([row["name"], *map(str, sizes), *times, *work])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print(" ".join([line[0].ljust(widths[0]), *cells]))


def main() -> None:
    """Print the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Host cost of the attention plans.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.command = f"python -m eval.micro.mask_plans --repeats {args.repeats} --seed {args.seed}"
    started = time.perf_counter()
    rows = [measure(case, args.seed, args.repeats) for case in CASES]
    print_table(rows)
    said = about(args, time.perf_counter() - started)
    write_report(said | {"better": "lower", "numpy": np.__version__, "rows": rows}, args.json)


if __name__ == "__main__":
    main()
