# SPDX-License-Identifier: Apache-2.0
"""Replay one workload through one cache: queue, schedule, plan, evict, insert, as a server does.

One step runs one request:

    fill the queue -> scheduler picks -> plan -> lock the hits -> evict what the rest needs
    -> touch the hits -> insert the missed segments, parents first -> hold -> unlock

What is simulated is which tokens are cached, not time. Slots are counted as the server counts
them: the tree's, and those of the task and the answer, which nobody else can use and which are
held only while the request runs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depcache.cache.invariants import check_tree
from depcache.cache.node import Node
from depcache.cache.tree import KVTree
from depcache.errors import ConfigError
from depcache.plan.insertion import ContextInsertion
from depcache.plan.request import RequestPlan, plan_request
from depcache.plan.schedule import MAX_PASSED
from depcache.plan.segments import SegmentTable
from eval.policy.future import make_future
from eval.policy.orders import ORDERS
from eval.policy.policies import make_policy
from eval.policy.slots import SimulatedSlots

NAMESPACE = ("", "tree")
PRIVATE_TOKENS = 80
"""A task of 64 tokens and an answer of 16."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """One cell of the table.

    capacity        slots of the pool, in tokens
    policy          name, with its `options` (name, value)
    queue_depth     requests that wait, the next one included
    num_running     requests that hold their nodes at the same time
    private_tokens  slots of the task and the answer of one request
    warmup          share of the requests, from the first, that is not counted
    max_passed      see `depcache.plan.schedule`
    """

    capacity: int
    policy: str = "lru"
    scheduler: str = "fcfs"
    queue_depth: int = 64
    num_running: int = 1
    private_tokens: int = PRIVATE_TOKENS
    warmup: float = 0.2
    max_passed: int = MAX_PASSED
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was counted behind the warm-up, in tokens of the context: the system is left out.

    The warm-up is the first requests of the workload, not the first to run: so every scheduler
    is judged by the same requests.

    by_request  mean over the requests of hit / all tokens of one
    seconds     wall time of the whole replay
    """

    num_requests: int
    hit_tokens: int
    context_tokens: int
    evicted_tokens: int
    by_request: float
    seconds: float

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.context_tokens if self.context_tokens else 0.0


def check_capacity(tables: Sequence[SegmentTable], settings: ReplaySettings) -> None:
    """ConfigError when the largest request does not fit into an empty pool."""
    needed = max((table.task_start for table in tables), default=0) + settings.private_tokens
    if settings.capacity < needed:
        raise ConfigError(
            f"a capacity of {settings.capacity:,} tokens holds no request of {needed:,}: "
            "choose a larger one"
        )


class Replay:
    """A cache and its queue. `run` takes a whole workload; `step` one request."""

    def __init__(self, tables: Sequence[SegmentTable], settings: ReplaySettings) -> None:
        if settings.queue_depth < 1 or settings.num_running < 1 or not 0 <= settings.warmup < 1:
            raise ConfigError(
                f"queue_depth is {settings.queue_depth}, num_running {settings.num_running}, "
                f"warmup {settings.warmup}: choose at least 1, 1, and 0 to below 1"
            )
        check_capacity(tables, settings)
        self.tables = tables
        self.settings = settings
        self.slots = SimulatedSlots(settings.capacity)
        self.tree = KVTree(make_policy(settings.policy, **dict(settings.options)))
        self.scheduler = ORDERS[settings.scheduler](self.tree, max_passed=settings.max_passed)
        self.future = make_future(settings.policy, self.tree, NAMESPACE, tables)
        self._num_entered = 0
        # (nodes to unlock, private slots), oldest first.
        self._running: deque[tuple[list[Node], NDArray[np.int64]]] = deque()

    def run(self) -> Outcome:
        """Every request once."""
        started = time.perf_counter()
        num_warmup = int(len(self.tables) * self.settings.warmup)
        hits: list[int] = []
        sizes: list[int] = []
        for _ in self.tables:
            number, hit, size = self.step()
            if number >= num_warmup:
                hits.append(hit)
                sizes.append(size)
        while self._running:
            self._finish()
        return Outcome(
            num_requests=len(sizes),
            hit_tokens=sum(hits),
            context_tokens=sum(sizes),
            evicted_tokens=self.tree.counters.evicted,
            by_request=float(np.mean(np.array(hits) / np.maximum(sizes, 1))) if sizes else 0.0,
            seconds=time.perf_counter() - started,
        )

    def step(self) -> tuple[int, int, int]:
        """Run the next request; its number, its hit and its context tokens."""
        self._fill_queue()
        ordered = self.scheduler.order()
        self.future.set_order(ordered)
        number = ordered[0]
        assert isinstance(number, int)
        self.future.leave(number)
        table = self.tables[number]
        while len(self._running) >= self.settings.num_running:
            self._finish()
        plan = plan_request(self.tree, self.tree.root(NAMESPACE), table)
        self.tree.lock(plan.nodes)
        self.scheduler.start(number)
        while not self._make_room(plan.num_missed + self.settings.private_tokens):
            self._finish()
        self.tree.touch(plan.nodes)
        nodes = [*plan.nodes, *self._insert(plan, table)]
        self.scheduler.finish(number)
        private = self.slots.take(self.settings.private_tokens)
        self._running.append((nodes, private))
        num_system = _system_len(table)
        num_system_hits = plan.matched[0] if num_system else 0
        return number, plan.num_hits - num_system_hits, table.task_start - num_system

    def check(self) -> None:
        """RuntimeError if a slot is lost or held twice; for tests."""
        check_tree(self.tree)
        private = sum(len(slots) for _, slots in self._running)
        held = self.slots.num_free + self.tree.num_tokens + private
        if held != self.slots.capacity:
            raise RuntimeError(f"{held} slots are held or free, but {self.slots.capacity} exist")

    def _fill_queue(self) -> None:
        while len(self.scheduler) < self.settings.queue_depth and self._num_entered < len(
            self.tables
        ):
            number = self._num_entered
            self.scheduler.enter(number, NAMESPACE, self.tables[number])
            self.future.enter(number)
            self._num_entered += 1

    def _make_room(self, num_tokens: int) -> bool:
        missing = num_tokens - self.slots.num_free
        if missing > 0:
            self.slots.give(self.tree.tiers.evict(self.tree, missing))
        return num_tokens <= self.slots.num_free

    def _insert(self, plan: RequestPlan, table: SegmentTable) -> list[Node]:
        """Cache the missed part of every segment; the new nodes, locked."""
        insertion = ContextInsertion(
            self.tree,
            NAMESPACE,
            table,
            plan,
            num_computed=plan.num_missed + self.settings.private_tokens,
        )
        slots = np.zeros(plan.num_context, np.int64)
        slots[plan.num_hits :] = self.slots.take(plan.num_missed)
        return insertion.offer(plan.num_context, slots).taken

    def _finish(self) -> None:
        """The oldest running request ends."""
        nodes, private = self._running.popleft()
        self.tree.unlock(nodes)
        self.slots.give([private])


def _system_len(table: SegmentTable) -> int:
    """Tokens of the system, which every table of a workload has as segment 0."""
    return table.stops[0] if table.num_segments else 0
