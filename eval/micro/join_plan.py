# SPDX-License-Identifier: Apache-2.0
"""Plan a prompt of 40 tables with 12 joins, 6,000 tokens, against a tree of 100,000 nodes.

Promise: under 3 ms. Also how long it takes before that to hang the tables by what they see, and to
prepare the prompt for matching, keys of the joins included.

`python -m eval.micro.join_plan [--nodes N] [--repeats N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from depcache.cache import KVTree
from depcache.plan import SegmentTable, plan_request
from depcache.prompt.forest import Forest
from depcache.prompt.seen_rows import hang_rows
from eval.micro.match_plan import LAYOUT, NAMESPACE, SYSTEM_LEN, TASK_LEN, fill, grow
from eval.micro.spread import spread_ms
from eval.output import write_rows

NUM_TABLES = 40
NUM_JOINS = 12
NUM_TOKENS = 6_000


def make_tables(rng: np.random.Generator) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of tables that begin alike, and which each names: 12 name two roots and a chain."""
    num_own = (NUM_TOKENS - SYSTEM_LEN - TASK_LEN) // NUM_TABLES
    rows = [[7, 8, 9, *rng.integers(100, 50_000, num_own - 3).tolist()] for _ in range(NUM_TABLES)]
    num_plain = NUM_TABLES - NUM_JOINS
    sees: list[list[int]] = []
    for table in range(NUM_TABLES):
        if table < num_plain // 2:
            sees.append([])
        elif table < num_plain:  # below one of the first
            sees.append([int(rng.integers(num_plain // 2))])
        else:
            roots = rng.choice(num_plain // 2, 2, replace=False).tolist()
            earlier = [int(rng.integers(num_plain, table))] if table % 3 == 2 else []
            sees.append(sorted([*roots, *earlier]))
    return rows, sees


def make_prompt(system: list[int], rows: list[list[int]], sees: list[list[int]]) -> tuple[Any, ...]:
    """Tokens of the prompt, and its forest."""
    (own, lens, parents), joins = hang_rows(rows, sees, merge=False)
    tokens = np.array([*system, *own, *[5] * TASK_LEN], np.int64)
    return tokens, Forest.make(len(tokens), len(system), lens, parents, joins)


def main() -> None:
    """Print median and spread, warm and cold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()

    rng = np.random.default_rng(0)
    tree = KVTree()
    system = rng.integers(100, 1000, SYSTEM_LEN).tolist()
    _, next_slot = grow(tree, arguments.nodes, system, rng)
    rows, sees = make_tables(rng)
    tokens, forest = make_prompt(system, rows, sees)
    table = SegmentTable.make(tokens, forest, LAYOUT)
    root = tree.root(NAMESPACE)
    counts = {
        "nodes": tree.num_nodes,
        "tokens": forest.num_tokens,
        "tables": len(rows),
        "joins": len(forest.structure.joins),
    }
    calls = [
        ("hang", lambda: make_prompt(system, rows, sees)),
        ("prepare", lambda: SegmentTable.make(tokens, forest, LAYOUT)),
        ("plan cold", lambda: plan_request(tree, root, table)),
        ("plan warm", lambda: plan_request(tree, root, table)),
    ]
    told = []
    for name, call in calls:
        if name == "plan warm":
            fill(tree, table, next_slot)
        spread = spread_ms(call, arguments.repeats)
        num_hits = plan_request(tree, root, table).num_hits
        told.append({"case": name, **counts, "hits": num_hits, **spread})
        print("  ".join(f"{key}={value}" for key, value in told[-1].items()))
    write_rows(arguments, "python -m eval.micro.join_plan", started, told)


if __name__ == "__main__":
    main()
