# SPDX-License-Identifier: Apache-2.0
"""No slot is lost or owned twice, whatever requests with joins, tenants and evictions do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.cache.invariants import check_tree
from depcache.plan import ContextInsertion, Lookahead, plan_request
from depcache.plan.tail import TailInsertion
from tests.depcache.plan.test_joins import Prompt, Tables

CAPACITY = 600
CHECK_EVERY = 50
PUBLIC = "everyone"
TENANTS = (PUBLIC, "al", "bo")


@dataclass
class Running:
    """A request between its first row and its last.

    slots  of all rows; those behind `num_done` are not computed yet
    mine   the slots that it must give back
    """

    prompt: Prompt
    insertion: ContextInsertion
    tail: TailInsertion
    slots: np.ndarray
    num_hits: int
    nodes: list
    mine: set[int]
    num_done: int = field(default=0)


class World:
    """A pool of slots, a tree, and requests that use both as the server does."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tree = KVTree(public_of=lambda _: PUBLIC)
        self.queue = Lookahead(self.tree)
        self.free = set(range(CAPACITY))
        self.running: list[Running] = []
        self.waiting: list[int] = []
        self.num_asked = self.num_joined_hits = 0
        self.schemas = [Tables.make(self.rng, self.rng.randint(3, 9)) for _ in range(2)]

    def draw(self) -> Prompt:
        tables = self.rng.choice(self.schemas)
        num = len(tables.texts)
        order = self.rng.sample(range(num), self.rng.randint(1, num))
        system = self.rng.choice(([], [900, 901]))
        task = [999] * self.rng.choice((1, 2, 20))
        return Prompt(tables, order, list(system), task)

    # -- what can happen -------------------------------------------------------------------------

    def wait(self) -> None:
        self.num_asked += 1
        self.queue.enter(self.num_asked, self.rng.choice(TENANTS), self.draw().table())
        self.waiting.append(self.num_asked)

    def leave(self) -> None:
        if self.waiting:
            self.queue.leave(self.waiting.pop(self.rng.randrange(len(self.waiting))))

    def begin(self) -> None:
        prompt, tenant = self.draw(), self.rng.choice(TENANTS)
        table = prompt.table()
        root = self.tree.root(tenant)
        plan = plan_request(self.tree, root, table, tail_stop=table.num_tokens - 1)
        self.tree.lock(plan.nodes)
        self.num_joined_hits += sum(
            1 for segment in table.behind if plan.matched[segment] and plan.num_hits
        )
        num_new = table.num_tokens - plan.num_hits - plan.num_tail
        if len(self.free) < num_new:
            self.evict(num_new - len(self.free))
        if len(self.free) < num_new:
            self.tree.unlock(plan.nodes)
            return
        new = [self.free.pop() for _ in range(num_new)]
        slots = np.zeros(table.num_tokens, np.int64)
        is_tail = np.zeros(table.num_tokens, bool)
        is_tail[plan.num_context : plan.num_context + plan.num_tail] = True
        is_new = ~is_tail
        is_new[: plan.num_hits] = False
        slots[is_new] = new
        slots[~is_new] = plan.shared_slots
        insertion = ContextInsertion(self.tree, tenant, table, plan, num_computed=num_new)
        tail = TailInsertion(self.tree, tenant, table, plan, insertion, num_computed=num_new)
        self.running.append(
            Running(prompt, insertion, tail, slots, plan.num_hits, list(plan.nodes), set(new))
        )

    def compute(self) -> None:
        if not self.running:
            return
        run = self.rng.choice(self.running)
        table = run.prompt.table()
        run.num_done = self.rng.randint(run.num_done, table.num_tokens)
        offers = [run.insertion.offer(run.num_done, run.slots[: run.num_done])]
        num_tail = run.num_done - table.task_start
        if run.tail.is_open(num_tail):
            key = table.key[4 * table.task_start : 4 * run.num_done]
            offers.append(run.tail.offer(key, run.slots[table.task_start : run.num_done]))
        for offer in offers:
            run.nodes += offer.taken
            for each in offer.duplicates:
                own = set(each.own.tolist())
                assert own <= run.mine
                run.mine -= own
                self.free |= own
                run.slots[each.row : each.row + len(each.cached)] = each.cached
        owned = run.insertion.owned.copy()
        owned[table.task_start : table.task_start + run.tail.num_owned] = True
        run.mine -= set(run.slots[owned].tolist())

    def end(self) -> None:
        """It is finished, or aborted with rows that nobody has computed."""
        if self.running:
            run = self.running.pop(self.rng.randrange(len(self.running)))
            self.free |= run.mine
            self.tree.unlock(run.nodes)

    def evict(self, num_tokens: int | None = None) -> None:
        wanted = self.rng.randint(1, 60) if num_tokens is None else num_tokens
        for node, slots in self.tree.evict(wanted):
            self.tree.prune(node)
            self.give_back(slots)

    def forget_some(self) -> None:
        """Something is invalidated, now and then."""
        nodes = list(self.tree.nodes())
        if nodes and self.rng.random() < 0.2:
            for slots in self.tree.forget(self.rng.choice(nodes))[0]:
                self.give_back(slots)

    def give_back(self, slots: np.ndarray) -> None:
        back = set(slots.tolist())
        assert len(back) == len(slots) and not back & self.free
        self.free |= back

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        check_tree(self.tree)
        owners = [self.free, *(run.mine for run in self.running)]
        owners += [set(node.slots.tolist()) for node in self.tree.nodes() if node.slots is not None]
        assert sum(map(len, owners)) == len(set().union(*owners)) == CAPACITY

    def run(self, num_steps: int) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.begin, 6),
            (self.compute, 10),
            (self.end, 7),
            (self.evict, 1),
            (self.wait, 2),
            (self.leave, 2),
            (self.forget_some, 1),
        ]
        kinds, weights = zip(*steps, strict=True)
        for number, step in enumerate(self.rng.choices(kinds, weights, k=num_steps)):
            step()
            if number % CHECK_EVERY == 0:
                self.check()
        while self.running:
            self.end()
        while self.waiting:
            self.leave()
        self.check()
        assert self.tree.num_locked == 0
        self.evict(CAPACITY)
        assert len(self.free) == CAPACITY
        assert not list(self.tree.nodes())


def test_slots_are_conserved_with_joins() -> None:
    num_joined_hits = 0
    for seed in range(5):
        world = World(seed)
        world.run(2000)
        num_joined_hits += world.num_joined_hits
    assert num_joined_hits > 50


@pytest.mark.slow
def test_slots_are_conserved_over_100_000_steps() -> None:
    World(77).run(100_000)
