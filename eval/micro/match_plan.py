# SPDX-License-Identifier: Apache-2.0
"""Match and plan a 4,000-token prompt against a tree of 100,000 nodes (promise: under 2 ms).

`python -m eval.micro.match_plan [--nodes N] [--tokens N] [--repeats N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np

from depcache.cache import KVTree
from depcache.plan import ContextInsertion, SegmentTable, plan_request
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout
from depcache.prompt.prefix_tree import merge_sequences
from eval.micro.spread import spread_ms

SYSTEM_LEN = 40
TASK_LEN = 20
PATHS_PER_ENTITY = 30
ELEMENTS_PER_PATH = 5
LAYOUT: Layout = "tree"
NAMESPACE = "benchmark"


def make_paths(entity: int, rng: np.random.Generator) -> list[list[int]]:
    """30 two-hop paths of one entity: shared name, few relations, many objects."""
    name = [1000 + entity, *rng.integers(100, 1000, 3).tolist()]
    relations = [rng.integers(10, 60, 2).tolist() for _ in range(6)]
    paths = []
    for _ in range(PATHS_PER_ENTITY):
        middle = rng.integers(100, 1000, rng.integers(3, 7)).tolist()
        last = rng.integers(100, 1000, rng.integers(3, 7)).tolist()
        first, second = rng.integers(0, 6, 2)
        paths.append([*name, *relations[first], *middle, *relations[second], *last])
    return paths


def make_prompt(
    system: list[int], entities: list[int], paths: dict[int, list[list[int]]], max_tokens: int
) -> SegmentTable:
    """Entities are added until the prompt has about `max_tokens` tokens."""
    context: list[list[int]] = []
    num_tokens = SYSTEM_LEN + TASK_LEN
    for entity in entities:
        for path in paths[entity]:
            if num_tokens < max_tokens:
                context.append(path)
                num_tokens += len(path) - 5  # about what merging leaves of it
    tokens, lens, parents = merge_sequences(context)
    task = [5] * TASK_LEN
    prompt = np.array([*system, *tokens, *task], np.int64)
    return SegmentTable.make(prompt, Forest.make(len(prompt), len(system), lens, parents), LAYOUT)


def fill(tree: KVTree, table: SegmentTable, next_slot: int) -> int:
    """Cache a prompt as the engine does when it has computed it; the next free slot."""
    plan = plan_request(tree, tree.root(NAMESPACE), table)
    insertion = ContextInsertion(tree, NAMESPACE, table, plan, num_computed=0)
    slots = np.zeros(plan.num_context, np.int64)
    slots[plan.num_hits :] = next_slot + np.arange(plan.num_missed)
    tree.unlock(insertion.offer(plan.num_context, slots).taken)
    return next_slot + plan.num_missed


def grow(
    tree: KVTree, num_nodes: int, system: list[int], rng: np.random.Generator
) -> tuple[dict[int, list[list[int]]], int]:
    """Cache an entity after the other until there are so many nodes; paths, and the next slot."""
    paths: dict[int, list[list[int]]] = {}
    next_slot = 0
    while tree.num_nodes < num_nodes:
        entity = len(paths)
        paths[entity] = make_paths(entity, rng)
        next_slot = fill(tree, make_prompt(system, [entity], paths, 10**9), next_slot)
    return paths, next_slot


def main() -> None:
    """Print median and spread for a warm, a half-cached and a cold prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    tree = KVTree()
    system = rng.integers(100, 1000, SYSTEM_LEN).tolist()
    paths, _ = grow(tree, arguments.nodes, system, rng)
    root = tree.root(NAMESPACE)
    known = rng.permutation(len(paths)).tolist()
    for entity in range(len(paths), len(paths) + 40):
        paths[entity] = make_paths(entity, rng)
    unknown = list(range(len(paths) - 40, len(paths)))
    mixed = [entity for pair in zip(known[:40], unknown, strict=True) for entity in pair]

    rows = []
    for name, entities in (("warm", known[:60]), ("half", mixed), ("cold", unknown)):
        table = make_prompt(system, entities, paths, arguments.tokens)
        hits = plan_request(tree, root, table).num_hits
        spread = spread_ms(partial(plan_request, tree, root, table), arguments.repeats)
        rows.append(
            {
                "case": name,
                "nodes": tree.num_nodes,
                "tokens": table.num_tokens,
                "segments": table.num_segments,
                "hits": hits,
                **spread,
            }
        )
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
