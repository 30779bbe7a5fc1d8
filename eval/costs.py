# SPDX-License-Identifier: Apache-2.0
"""What the cache's host code costs: `python -m eval costs --json OUT`.

    match_plan_ms_median  match and plan a prompt of about 4,000 tokens, half of it cached
    select_ms_median      choose 15 % of the tokens of 32 rows, all together about as many
    fused_match_plan_ms_median  match and plan these rows, all of them cached, that share selected
    evict_10k_ms          evict 10,000 nodes
    evict_10k_used_ms     the same after the look-ahead below, which leaves old entries behind
    lookahead_256_ms      one scheduling step of a queue of 256 requests: one leaves, one enters,
                          and the order changes
    lookahead_256_full_ms the worst case: all 256 leave and enter again
    schedule_256_ms       the order of that queue by each reordering scheduler, a request having
                          left and one having come
    bytes_per_node        host memory of the tree over its nodes, keys and slot numbers included

All on a tree of 100,000 nodes of made-up facts; medians. Smaller is better. Times are CPU time of
the one thread that works, so that a busy machine does not count; matching is wall time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from depcache.cache import KVTree
from depcache.cache.policies import make_policy
from depcache.plan import Lookahead, SegmentTable, plan_request
from depcache.plan.schedule import FCFS
from depcache.prompt.forest import Forest
from depcache.prompt.recompute import Recompute
from depcache.select import select
from eval.micro.match_plan import (
    NAMESPACE,
    SYSTEM_LEN,
    TASK_LEN,
    fill,
    make_paths,
    make_prompt,
)
from eval.micro.spread import spread_ms
from eval.output import about, write_report
from eval.policy.orders import ORDERS

NUM_NODES = 100_000
NUM_EVICTED = 10_000
QUEUE_LEN = 256
PROMPT_TOKENS = 4_000
NUM_ROWS, SHARE = 32, 0.15
POLICY = "lacr"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add = parser.add_argument
    add("--json", type=Path, help="file for the figures; - is stdout")
    add("--nodes", type=int, default=NUM_NODES, help=f"of the tree (default {NUM_NODES})")
    add("--queue", type=int, default=QUEUE_LEN, help=f"waiting requests (default {QUEUE_LEN})")
    add("--repeats", type=int, default=50, help="of what can be repeated (default 50)")
    add("--policy", default=POLICY, help=f"of the tree (default {POLICY})")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    started = time.perf_counter()
    figures = measure_costs(args.nodes, args.queue, args.repeats, args.policy)
    report = figures | about(args, time.perf_counter() - started)
    write_report(report, args.json or Path("-"))
    if args.json is not None:
        err = Console(stderr=True, highlight=False)
        for name, value in figures.items():
            err.print(f"{name}: {value}")
    return 0


class Facts:
    """Made-up facts of as many entities as are asked for, and prompts over them."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._system = self._rng.integers(100, 1000, SYSTEM_LEN).tolist()
        self._paths: dict[int, list[list[int]]] = {}

    def prompt(self, entities: list[int], max_tokens: int = PROMPT_TOKENS) -> SegmentTable:
        """A prompt over some entities, cut at about `max_tokens`."""
        for entity in entities:
            if entity not in self._paths:
                self._paths[entity] = make_paths(entity, self._rng)
        return make_prompt(self._system, entities, self._paths, max_tokens)

    def fill(self, tree: KVTree, num_nodes: int) -> int:
        """Cache entity after entity until the tree has `num_nodes`; the number of entities."""
        entity = next_slot = 0
        while tree.num_nodes < num_nodes:
            next_slot = fill(tree, self.prompt([entity], 10**9), next_slot)
            entity += 1
        return entity


def measure_costs(num_nodes: int, queue_len: int, repeats: int, policy: str) -> dict[str, Any]:
    """All figures; see above."""
    facts = Facts()
    tree = KVTree(make_policy(policy))
    num_known = facts.fill(tree, num_nodes)
    rng = np.random.default_rng(1)
    known = rng.permutation(num_known)[:30].tolist()
    unknown = list(range(num_known, num_known + 30))
    mixed = [entity for pair in zip(known, unknown, strict=True) for entity in pair]
    match = partial(plan_request, tree, tree.root(NAMESPACE), facts.prompt(mixed))

    requests = [
        facts.prompt(rng.choice(num_known, min(30, num_known), replace=False).tolist())
        for _ in range(queue_len + repeats)
    ]
    figures: dict[str, Any] = {
        "match_plan_ms_median": spread_ms(match, repeats)["median_ms"],
        **measure_fused(tree, repeats),
        "evict_10k_ms": None,
        **measure_lookahead(tree, requests, queue_len),
        "bytes_per_node": None,
        **{
            f"schedule_256_ms_{name}": measure_schedule(name, tree, requests, queue_len)
            for name in ORDERS
            if name != FCFS
        },
    }
    figures["evict_10k_used_ms"] = measure_eviction(tree, NUM_EVICTED)
    fresh = KVTree(make_policy(policy))
    Facts().fill(fresh, num_nodes)
    figures["evict_10k_ms"] = measure_eviction(fresh, NUM_EVICTED)
    figures |= measure_memory(num_nodes, policy)
    return figures | {
        "nodes": num_nodes,
        "queue": queue_len,
        "policy": policy,
    }


def measure_fused(tree: KVTree, repeats: int) -> dict[str, float]:
    """What a fused prompt of `NUM_ROWS` cached rows costs: to select, and to match and plan."""
    rng = np.random.default_rng(3)
    row_len = (PROMPT_TOKENS - SYSTEM_LEN - TASK_LEN) // NUM_ROWS
    num_tokens = SYSTEM_LEN + NUM_ROWS * row_len + TASK_LEN
    tokens = rng.integers(100, 1000, num_tokens)
    forest = Forest.make(num_tokens, SYSTEM_LEN, [row_len] * NUM_ROWS, [-1] * NUM_ROWS)
    recompute = Recompute(SHARE)
    fill(tree, SegmentTable.make(tokens, forest, "tree"), 10**8)
    table = SegmentTable.make(tokens, forest, "sequential", select(forest, recompute))
    choose = partial(select, forest, recompute)
    match = partial(plan_request, tree, tree.root(NAMESPACE), table)
    return {
        "select_ms_median": spread_ms(choose, repeats)["median_ms"],
        "fused_match_plan_ms_median": spread_ms(match, repeats)["median_ms"],
    }


def measure_lookahead(
    tree: KVTree, requests: list[SegmentTable], queue_len: int
) -> dict[str, float]:
    """One scheduling step, and the re-registration of the whole queue; then it is empty again."""
    lookahead = Lookahead(tree)
    rng = np.random.default_rng(2)
    waiting = list(range(queue_len))
    for number in waiting:
        lookahead.enter(number, NAMESPACE, requests[number])
    steps: list[float] = []
    for number in range(queue_len, len(requests)):
        order = [waiting[i] for i in rng.permutation(queue_len)]

        def step(number: int = number, order: list[int] = order) -> None:
            lookahead.leave(order[0])
            lookahead.enter(number, NAMESPACE, requests[number])
            lookahead.set_order([*order[1:], number])

        steps.append(_time_ms(step))
        waiting = [*order[1:], number]

    def register() -> None:
        for number in waiting:
            lookahead.leave(number)
        for number in waiting:
            lookahead.enter(number, NAMESPACE, requests[number])
        lookahead.set_order(waiting)

    full = _time_ms(register)
    for number in waiting:
        lookahead.leave(number)
    return {
        "lookahead_256_ms": round(statistics.median(steps), 3),
        "lookahead_256_full_ms": round(full, 3),
    }


def measure_schedule(
    name: str, tree: KVTree, requests: list[SegmentTable], queue_len: int
) -> float:
    """Milliseconds (median) of a step: one request starts and ends, one enters, order is asked."""
    scheduler = ORDERS[name](tree)
    for number in range(queue_len):
        scheduler.enter(number, NAMESPACE, requests[number])
    scheduler.order()
    steps: list[float] = []
    for number in range(queue_len, len(requests)):

        def step(number: int = number) -> None:
            first = scheduler.order()[0]
            scheduler.start(first)
            scheduler.finish(first)
            scheduler.enter(number, NAMESPACE, requests[number])

        steps.append(_time_ms(step))
        tree.version += 1  # as if something had been cached: what was counted is old
    return round(statistics.median(steps), 3)


def measure_eviction(tree: KVTree, num_nodes: int) -> float | None:
    """Milliseconds (median of five) to evict about `num_nodes`, scaled; None for a small tree."""
    tree.tiers.evict(tree, 1)  # the first one after many insertions tidies the queue
    rounds: list[float] = []
    for _ in range(5):
        before = tree.counters.evicted_nodes
        num_tokens = num_nodes * max(1, tree.num_tokens // max(1, tree.num_nodes))
        spent_ms = _time_ms(lambda num_tokens=num_tokens: tree.tiers.evict(tree, num_tokens))
        num_evicted = tree.counters.evicted_nodes - before
        if num_evicted:
            rounds.append(spent_ms * num_nodes / num_evicted)
    return round(statistics.median(rounds), 2) if rounds else None


def measure_memory(num_nodes: int, policy: str) -> dict[str, float]:
    """Bytes of the tree over its nodes, and its tokens over its nodes."""
    facts = Facts()
    entities = facts.fill(KVTree(), num_nodes)  # the facts are made before memory is counted
    prompts = [facts.prompt([entity], 10**9) for entity in range(entities)]
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tree = KVTree(make_policy(policy))
        next_slot = 0
        for prompt in prompts:
            next_slot = fill(tree, prompt, next_slot)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {
        "bytes_per_node": round((after - before) / tree.num_nodes, 1),
        "tokens_per_node": round(tree.num_tokens / tree.num_nodes, 2),
    }


def _time_ms(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1000
