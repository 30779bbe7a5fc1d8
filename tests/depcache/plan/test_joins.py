# SPDX-License-Identifier: Apache-2.0
"""Joined trees in the cache: what is found is what would be computed, whatever else is there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.cache import KVTree
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key
from depcache.plan import (
    ContextInsertion,
    Lookahead,
    SegmentTable,
    look_up,
    match_segments,
    plan_request,
)
from depcache.plan.join_key import make_join_keys
from depcache.plan.sharing import Sharing
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout, token_positions

NAMESPACE = "ns"


@dataclass
class Tables:
    """A schema: tables 0.. with their tokens, each refers to some that come before it."""

    texts: list[list[int]]
    refers: list[set[int]]

    @classmethod
    def make(cls, rng: random.Random, num_tables: int) -> Tables:
        texts = [
            [number, *(rng.randrange(100, 103) for _ in range(rng.randrange(4)))]
            for number in range(num_tables)
        ]
        refers = [
            set(rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2, 3]))))
            for number in range(num_tables)
        ]
        return cls(texts, refers)

    def sees(self, table: int, present: Sequence[int]) -> set[int]:
        """What a table refers to, directly or not, on ways through tables of the prompt."""
        seen: set[int] = set()
        for other in self.refers[table].intersection(present):
            seen |= {other} | self.sees(other, present)
        return seen


@dataclass
class Prompt:
    """Tables in an order, as a forest: below the one that a table sees, or joined to several."""

    tables: Tables
    order: list[int]
    system: list[int] = field(default_factory=lambda: [900, 901])
    task: list[int] = field(default_factory=lambda: [999])

    def __post_init__(self) -> None:
        children: dict[int, list[int]] = {}
        trees: list[int] = []
        joins: dict[int, list[int]] = {}
        placed: list[int] = []
        left = list(self.order)
        while left:  # in the given order, as far as what they see lets them
            table = next(t for t in left if self.sees(t) <= set(placed))
            left.remove(table)
            placed.append(table)
            seen = self.sees(table)
            nearest = [a for a in seen if not any(a in self.sees(b) for b in seen)]
            if len(nearest) == 1:
                children.setdefault(nearest[0], []).append(table)
            else:
                trees.append(table)
                if nearest:
                    joins[table] = nearest
        self.segments: list[int] = []
        parents: list[int] = []

        def append(table: int, parent: int) -> None:
            number = len(self.segments)
            self.segments.append(table)
            parents.append(parent)
            for child in children.get(table, ()):
                append(child, number)

        for tree in trees:
            append(tree, -1)
        number = {table: segment for segment, table in enumerate(self.segments)}
        lens = [len(self.tables.texts[table]) for table in self.segments]
        self.tokens = [*self.system, *(t for s in self.segments for t in self.tables.texts[s])]
        self.tokens += self.task
        self.forest = Forest.make(
            len(self.tokens),
            len(self.system),
            lens,
            parents,
            {number[root]: sorted(number[a] for a in seen) for root, seen in joins.items()},
        )

    def sees(self, table: int) -> set[int]:
        return self.tables.sees(table, self.order)

    def table(self, layout: Layout = "tree") -> SegmentTable:
        return SegmentTable.make(np.array(self.tokens), self.forest, layout)

    def kv(self) -> list[int]:
        """The KV of each token: a function of itself, its position, and the KV of all that it sees.

        Attention adds up over keys, so nothing depends on their order.
        """
        positions = token_positions(self.forest, "tree").tolist()
        owner: list[int | None] = [None] * len(self.system)
        for table in self.segments:
            owner += [table] * len(self.tables.texts[table])
        found: list[int] = []
        for i, table in enumerate(owner):
            seen = set() if table is None else self.sees(table) | {table}
            keys = frozenset(found[j] for j in range(i) if owner[j] is None or owner[j] in seen)
            found.append(hash((self.tokens[i], positions[i], keys)))
        return found


class Server:
    """Runs prompts; KV is what `Prompt.kv` says, kept by slot."""

    def __init__(self) -> None:
        self.tree = KVTree()
        self.kv: dict[int, int] = {}
        self.num_given = 0

    def run(self, prompt: Prompt) -> list[bool]:
        """Returns which tokens of system and context were found; all of them are right."""
        table = prompt.table()
        plan = plan_request(self.tree, self.tree.root(NAMESPACE), table)
        self.tree.lock(plan.nodes)
        right = prompt.kv()
        order = plan.order.tolist()
        # All stand at the position wanted: the layout says so from what they see.
        assert plan.num_hits == plan.num_shared
        for row, slot in enumerate(plan.shared_slots.tolist()):
            assert self.kv[slot] == right[order[row]]
        slots = self.num_given + np.arange(table.num_tokens)
        self.num_given += table.num_tokens
        slots[: plan.num_hits] = plan.shared_slots
        for row in range(plan.num_hits, plan.num_context):
            self.kv[int(slots[row])] = right[order[row]]
        insertion = ContextInsertion(self.tree, NAMESPACE, table, plan, num_computed=1)
        offer = insertion.offer(table.num_tokens, slots)
        assert not offer.duplicates
        assert insertion.owned[: plan.num_context].all()
        self.tree.unlock(plan.nodes + offer.taken)
        check_tree(self.tree)
        is_hit = [False] * plan.num_context
        for index in order[: plan.num_hits]:
            is_hit[index] = True
        return is_hit


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), evicts=st.booleans())
def test_what_is_found_is_what_would_be_computed(seed: int, evicts: bool) -> None:
    rng = random.Random(seed)
    tables = Tables.make(rng, rng.randint(2, 9))
    server = Server()
    computed: set[tuple[int, frozenset[int]]] = set()
    for _ in range(6):
        order = rng.sample(range(len(tables.texts)), rng.randint(1, len(tables.texts)))
        prompt = Prompt(tables, order)
        is_hit = server.run(prompt)
        for segment, table in enumerate(prompt.segments):
            start, stop = prompt.forest.starts[segment], prompt.forest.stops[segment]
            # A table that saw the same set before is there, in whatever order and company.
            identity = table, frozenset(prompt.sees(table))
            assert evicts or all(is_hit[start:stop]) == (identity in computed)
            computed.add(identity)
        if evicts:
            server.tree.evict(rng.randint(0, 12))
            for node in list(server.tree.nodes()):
                server.tree.prune(node)


def hexagon() -> Tables:
    """3 sees 1 and 2, which do not see each other; 4 is below 3; 5 sees 3 and 0."""
    refers: list[set[int]] = [set(), set(), set(), {1, 2}, {3}, {0, 3}]
    return Tables([[number, 100 + number] for number in range(6)], refers)


def test_only_the_trees_that_are_asked_for_say_what_they_are_behind() -> None:
    table = Prompt(hexagon(), [0, 1, 2, 3, 4, 5]).table()
    assert table.behind_of([1, 2]) == set()
    assert table.behind_of([5]) == {table.behind[4]}  # below the join
    assert table.behind_of([2, 5, 6]) == {table.behind[4], table.behind[6]}


def test_a_join_hangs_below_a_root_of_its_own() -> None:
    prompt = Prompt(hexagon(), [0, 1, 2, 3, 4, 5])
    assert prompt.segments == [0, 1, 2, 3, 4, 5]
    assert prompt.forest.structure.joins == ((3, (1, 2)), (5, (0, 3)))
    table = prompt.table()
    assert table.parents == [-1, 0, 0, 0, -1, 4, -1]
    assert sorted(table.behind) == [4, 6]
    assert table.placed == [0, 2, 2, 2, 4, 6, 6]
    server = Server()
    server.run(prompt)
    roots = {len(root.behind) > 0: root for root in server.tree.roots()}
    assert len(server.tree.roots()) == 3
    assert server.tree.namespaces() == [NAMESPACE]
    assert sorted(roots[False].children) == [900]


def test_a_join_is_found_after_what_it_sees_was_evicted() -> None:
    prompt = Prompt(hexagon(), [1, 2, 3])
    server = Server()
    server.run(prompt)
    [system] = server.tree.root(NAMESPACE).children.values()
    server.tree.forget(system)
    assert server.run(prompt) == [False] * 6 + [True] * 2
    assert server.run(prompt) == [True] * 8


@pytest.mark.parametrize("change", ["system", "seen", "fewer", "namespace"])
def test_a_join_of_something_else_is_another(change: str) -> None:
    tables = hexagon()
    prompt = Prompt(tables, [1, 2, 3])
    server = Server()
    server.run(prompt)
    if change == "system":
        other = Prompt(tables, [1, 2, 3], system=[900, 902])
    elif change == "seen":
        other = Prompt(
            Tables([*tables.texts[:2], [2, 555], *tables.texts[3:]], tables.refers), [1, 2, 3]
        )
    elif change == "fewer":
        other = Prompt(tables, [2, 3])
    else:
        other = prompt
    table = other.table()
    namespace = "another" if change == "namespace" else NAMESPACE
    match = match_segments(server.tree, server.tree.root(namespace), table)
    assert match.matched[-1] == 0


def test_all_who_ask_look_below_the_same_roots() -> None:
    tables = hexagon()
    tree = KVTree()
    table = Prompt(tables, [0, 1, 2, 3, 4, 5]).table()
    lookahead, sharing = Lookahead(tree), Sharing()
    lookahead.enter("waiting", NAMESPACE, table)
    assert len(tree.roots()) == 3
    slots = np.arange(table.task_start)
    plan = plan_request(tree, tree.root(NAMESPACE), table)
    insertion = ContextInsertion(tree, NAMESPACE, table, plan, num_computed=1)
    tree.unlock(insertion.offer(table.task_start, slots).taken)
    assert all(node.waiters for node in tree.nodes())
    look = look_up(tree, tree.root(NAMESPACE), table)
    assert look.shared == table.task_start
    assert match_segments(tree, tree.root(NAMESPACE), table).matched == look.matched
    lookahead.leave("waiting")
    check_tree(tree)

    rows = [
        sharing.add(NAMESPACE, Prompt(tables, order).table())
        for order in ([1, 2, 3], [2, 1, 3], [2, 3], [1, 2])
    ]
    # System 2, each table 2. Without table 1, table 3 is below 2 and not the join of both.
    assert sharing.shared[np.ix_(rows, rows)].tolist() == [
        [8, 8, 4, 6],
        [8, 8, 4, 6],
        [4, 4, 6, 4],
        [6, 6, 4, 6],
    ]
    for row in rows:
        sharing.remove(row)
    assert not sharing.shared.any() and not sharing._roots


def test_a_path_that_is_cut_elsewhere_is_the_same_unit() -> None:
    """How a way is cut depends on who else is in the prompt; what is seen at its end does not."""
    whole = Forest.make(7, 0, [3, 1, 2], [-1, -1, -1], {2: [0, 1]})
    cut = Forest.make(9, 0, [2, 1, 2, 1, 2], [-1, 0, 0, -1, -1], {4: [1, 3]})
    tables = [
        SegmentTable.make(np.array(tokens), forest, "tree")
        for tokens, forest in (
            ([1, 2, 3, 7, 8, 9, 0], whole),
            ([1, 2, 3, 5, 5, 7, 8, 9, 0], cut),
        )
    ]
    assert [*tables[0].behind.values()] == [*tables[1].behind.values()]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[bytes, list[bytes], list[int], list[tuple[int, list[int]]]]:
    """System, way to each segment, the root of each segment's tree, joins: tiny, so often equal."""
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=2)
    system = to_key(np.array(draw(st.lists(st.integers(0, 1), max_size=1)), np.int64))
    num_trees = draw(st.integers(2, 4))
    ways = [to_key(np.array(draw(tokens))) for _ in range(num_trees)]
    joins = [
        (root, sorted(seen))
        for root in range(1, num_trees)
        if (seen := draw(st.sets(st.integers(0, root - 1), max_size=3)))
    ]
    return system, ways, list(range(num_trees)), joins


def meaning(world: tuple, root: int) -> object:
    """What the last tree sees, as nested sets."""
    system, ways, _, joins = world
    seen_by = dict(joins)

    def unit(segment: int) -> tuple:
        return ways[segment], frozenset(map(unit, seen_by.get(segment, ())))

    def units(segment: int) -> frozenset:
        seen = seen_by.get(segment, ())
        return frozenset(map(unit, seen)).union(*map(units, seen))

    return system, units(root)


def is_unique(world: tuple) -> bool:
    """Whether no two units are the same, as on the wire: roots with equal joins differ."""
    _, ways, _, joins = world
    seen_by = dict(joins)
    kinds = [(way, tuple(seen_by.get(segment, ()))) for segment, way in enumerate(ways)]
    return len(set(kinds)) == len(kinds)


@settings(max_examples=500, deadline=None)
@given(worlds().filter(is_unique), worlds().filter(is_unique))
def test_keys_are_equal_where_the_same_is_seen_and_nowhere_else(one: tuple, other: tuple) -> None:
    keys = [
        make_join_keys(world[0], world[1].__getitem__, world[2], world[3]) for world in (one, other)
    ]
    for a, key_a in keys[0].items():
        for b, key_b in keys[1].items():
            assert (key_a == key_b) == (meaning(one, a) == meaning(other, b))


def test_keys_of_many_random_worlds_part_them_as_their_meanings_do() -> None:
    """Every pair of some thousand is judged: equal keys are those of equal meanings."""
    rng = random.Random(5)
    meaning_of: dict[bytes, object] = {}
    key_of: dict[object, bytes] = {}
    num_keys = 0
    while num_keys < 3000:
        num_trees = rng.randint(2, 5)
        ways = [
            to_key(np.array([rng.randrange(3) for _ in range(rng.randint(1, 2))]))
            for _ in range(num_trees)
        ]
        joins = [
            (root, sorted(rng.sample(range(root), rng.randint(1, min(root, 3)))))
            for root in range(1, num_trees)
            if rng.random() < 0.7
        ]
        system = to_key(np.array([rng.randrange(2) for _ in range(rng.randrange(2))], np.int64))
        world = system, ways, list(range(num_trees)), joins
        if not is_unique(world):
            continue
        for root, key in make_join_keys(system, ways.__getitem__, world[2], joins).items():
            num_keys += 1
            told = meaning(world, root)
            assert meaning_of.setdefault(key, told) == told
            assert key_of.setdefault(told, key) == key
    assert 10**5 < num_keys**2 / 2 and 300 < len(key_of) < num_keys
