# SPDX-License-Identifier: Apache-2.0
"""Shares of tenants: nobody is pushed below one while somebody else holds more than theirs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from depcache.cache import KVTree, Node, Shares, Tier, TierCopies, TierStack, make_policy
from depcache.cache.invariants import check_tree
from depcache.cache.radix import to_key

LEN = 10


def make_tree(named: dict[str, float], default: float = 0.0, policy: str = "lfu") -> KVTree:
    """A tree whose namespaces are the tenants' names."""
    return KVTree(make_policy(policy), shares=Shares(named, default, str))


class Filler:
    """Puts runs of `LEN` tokens into a tree, all slots different."""

    def __init__(self, tree: KVTree) -> None:
        self.tree = tree
        self._next = 0

    def put(self, tenant: str, number: int, uses: int = 1, below: Node | None = None) -> Node:
        tokens = np.arange(LEN) + LEN * number
        slots = np.arange(self._next, self._next + LEN)
        self._next += LEN
        node = below or self.tree.root(tenant)
        home = LEN if below is not None else 0
        end = self.tree.insert(node, to_key(tokens), slots, home, uses=uses).node
        assert end is not None
        return end


def held(tree: KVTree, tenant: str) -> int:
    nodes = [node for node in tree.nodes() if node.root.namespace == tenant]
    return sum(node.num_tokens for node in nodes if node.slots is not None)


def evict(tree: KVTree, num_tokens: int) -> list[str]:
    """The tenants of the victims."""
    victims = [node for node, _ in tree.evict(num_tokens)]
    owners = [str(node.root.namespace) for node in victims]
    for node in victims:
        tree.prune(node)
    check_tree(tree)
    return owners


def test_a_flood_leaves_a_tenant_its_share() -> None:
    tree = make_tree({"quiet": 0.3})
    filler = Filler(tree)
    for number in range(3):
        filler.put("quiet", number)
    for number in range(7):
        filler.put("loud", number, uses=50)  # worth more, and yet it goes
    for number in range(7, 60):
        assert evict(tree, LEN) == ["loud"]
        filler.put("loud", number, uses=50)
    assert held(tree, "quiet") == 3 * LEN
    assert tree.victims.num_within == 0


def test_without_shares_it_loses_all() -> None:
    tree = KVTree(make_policy("lfu"))
    filler = Filler(tree)
    for number in range(3):
        filler.put("quiet", number)
    for number in range(7):
        filler.put("loud", number, uses=50)
    assert evict(tree, 3 * LEN) == ["quiet"] * 3


def test_what_is_above_a_share_goes_by_its_worth_whoever_has_it() -> None:
    tree = make_tree({}, 0.25)
    filler = Filler(tree)
    for number in range(4):
        filler.put("a", number, uses=1 + number)
    for number in range(4):
        filler.put("b", number, uses=3)
    # Both hold a half; those of "a" are worth 1, 2, 3, 4.
    assert evict(tree, 2 * LEN) == ["a", "a"]
    # "a" has 2 of 6, still more than a quarter; equals go by age.
    assert evict(tree, LEN) == ["a"]
    # Now 1 of 5: below its share.
    assert evict(tree, 3 * LEN) == ["b", "b", "b"]


def test_room_that_nobody_claims_is_for_all() -> None:
    tree = make_tree({"absent": 0.9})
    filler = Filler(tree)
    for number in range(10):
        filler.put("present", number)
    assert held(tree, "present") == 10 * LEN
    assert evict(tree, LEN) == ["present"]


def test_a_share_counts_for_its_tenant_alone() -> None:
    """A lower one than every other's, none at all, and one of its own."""
    tree = make_tree({"low": 0.05, "none": 0.0, "high": 0.75}, 0.2)
    filler = Filler(tree)
    for tenant, number in (("low", 1), ("none", 1), ("high", 5), ("other", 2)):
        for run in range(number):
            filler.put(tenant, run, uses=9 if tenant in ("low", "none") else 1)
    # 1 of 9 is more than 0.05, and more than nothing; 5 of 9 and 2 of 9: only the latter is over.
    assert evict(tree, LEN) == ["other"]
    assert sorted(evict(tree, 2 * LEN)) == ["low", "none"]


def test_where_all_that_is_above_is_held_somebody_else_gives_way() -> None:
    tree = make_tree({"quiet": 0.5})
    filler = Filler(tree)
    filler.put("quiet", 0)
    running = [filler.put("loud", number) for number in range(5)]
    tree.lock(running)
    check_tree(tree)
    assert evict(tree, LEN) == ["quiet"]
    assert tree.victims.num_within == LEN
    tree.unlock(running)
    check_tree(tree)
    filler.put("quiet", 0)
    assert evict(tree, LEN) == ["loud"]


def test_with_more_tenants_than_shares_the_least_worthy_goes() -> None:
    tree = make_tree({}, 0.1)
    filler = Filler(tree)
    for number in range(50):
        filler.put(f"tenant {number}", 0, uses=1 + (number * 7) % 50)
    assert evict(tree, LEN) == ["tenant 0"]
    assert tree.victims.num_within == LEN


def test_a_reset_and_a_forgotten_tenant_leave_nothing() -> None:
    tree = make_tree({"a": 0.5})
    filler = Filler(tree)
    above = filler.put("a", 0)
    filler.put("a", 1, below=above)
    filler.put("b", 0)
    tree.forget(above)
    check_tree(tree)
    assert held(tree, "a") == 0
    tree.reset()
    check_tree(tree)
    assert evict(tree, LEN) == []


@pytest.mark.parametrize("policy", ["lfu", "lru", "gdsf", "lacr"])
@pytest.mark.parametrize("seed", range(4))
def test_victims_are_over_their_share_unless_nobody_is(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    shares = {"a": 0.3, "b": 0.2, "c": 0.0}
    tree = make_tree(shares, 0.05, policy)
    filler = Filler(tree)
    tenants = ["a", "b", "c", *(f"other {number}" for number in range(30))]
    locked: list[Node] = []
    within = 0
    for _ in range(400):
        tenant = rng.choice(tenants[: rng.choice((3, 6, 33))])
        node = filler.put(tenant, rng.randrange(40), rng.randint(1, 4))
        if rng.random() < 0.5 and node.num_tokens == LEN:
            node = filler.put(tenant, 100 + rng.randrange(10), below=node)
        if rng.random() < 0.2:
            tree.lock([node])
            locked.append(node)
        if locked and rng.random() < 0.2:
            tree.unlock([used := locked.pop(rng.randrange(len(locked)))])
            tree.touch([])
            assert used.slots is not None
        if rng.random() < 0.1 and node.num_tokens > LEN // 2:
            tree.split(node, LEN // 2)
        if rng.random() < 0.05:
            tree.revalue()
        while tree.num_tokens > 30 * LEN:
            total = tree.num_tokens
            over = {t for t in tenants if held(tree, t) > shares.get(t, 0.05) * total}
            can_go = {str(n.root.namespace) for n in tree.nodes() if n.is_evictable}
            owners = evict(tree, 1)
            if not owners:
                break
            if over & can_go:
                assert owners[0] in over
            else:
                within += 1
    assert (tree.victims.num_within > 0) == (within > 0)


def test_a_tier_below_has_the_same_shares() -> None:
    tiers = TierStack()
    tree = KVTree(make_policy("lfu"), tiers, shares=Shares({"quiet": 0.4}, 0.0, str))
    copies = TierCopies(tree, "host")
    tiers.append(Tier(copies))
    filler = Filler(tree)
    kept = [filler.put("quiet", number) for number in range(2)]
    kept += [filler.put("loud", number, uses=9) for number in range(4)]
    for node in kept:
        copies.add(node, node.slots)
    check_tree(tree)
    owners: list[str] = []
    for _ in range(4):
        found = copies.evict_one()
        assert found is not None
        owners.append(str(found[0].root.namespace))
        check_tree(tree)
    # It has 2 of 6, and 2 of 5: 0.4 is not more than its share. Then it has the half of 4.
    assert owners == ["loud", "loud", "quiet", "loud"]
    assert copies.describe()["evicted_within_share_tokens"] == 0


def test_what_is_in_no_tree_counts_for_its_tenant() -> None:
    tree = make_tree({"quiet": 0.5}, 0.1)
    queue = tree.victims
    filler = Filler(tree)
    filler.put("quiet", 0)
    filler.put("loud", 0)
    queue.hold("quiet", 2 * LEN)
    queue.hold(queue.stranger(b"a digest"), LEN)
    queue.check(list(tree.nodes()))
    # "quiet" holds 3 of 5, and two others 1 each.
    assert set(queue.over()) == {"quiet", "loud", b"a digest"}
    queue.hold("quiet", -LEN)
    queue.hold(b"a digest", -LEN)
    queue.check(list(tree.nodes()))
    assert set(queue.over()) == {"quiet", "loud"}
    tree.reset()
    assert queue.over() == ["quiet"], "a reset is of the tree"
    queue.hold("quiet", -LEN)
    queue.check([])
    assert queue.over() == []


def test_strangers_without_a_share_are_as_those_who_have_none() -> None:
    queue = make_tree({"quiet": 0.5}).victims
    assert queue.stranger(b"one") is queue.stranger(b"two") is queue.tenant_of("nobody")
    assert queue.tenant_of("quiet") == "quiet"
    queue.hold(queue.stranger(b"one"), LEN)
    assert queue.over() == [queue.stranger(b"two")]


def test_only_what_is_above_a_share_goes_where_nobody_may_lose_of_it() -> None:
    tree = make_tree({"quiet": 0.5})
    copies = TierCopies(tree, "host")
    filler = Filler(tree)
    for tenant in ("quiet", "quiet", "loud"):
        node = filler.put(tenant, 1 if tree.num_tokens else 0)
        copies.add(node, node.slots)
    copies.victims.capacity = 10 * LEN
    assert copies.evict_one(within=False) is not None
    assert copies.evict_one(within=False) is None
    assert copies.victims.num_within == 0
    assert copies.evict_one() is not None
    assert copies.victims.num_within == LEN
