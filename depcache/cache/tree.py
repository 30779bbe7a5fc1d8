# SPDX-License-Identifier: Apache-2.0
"""The compressed radix tree of cached KV: pure host code over ints, no tensor is touched.

The tree decides, the caller acts: `evict` returns victims whose slots the caller frees, `insert`
says which of the offered slots it took. The path from a root to a node is the list of
tokens that the node's KV depends on (DepCache paper, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from depcache.cache.node import Node, Root, path_key_of, path_of, slots_of
from depcache.cache.policies import EvictionPolicy, Lru
from depcache.cache.policies.base import NOTHING_AGAIN
from depcache.cache.radix import TOKEN_BYTES, common_prefix_tokens, first_token
from depcache.cache.records import Insertion, TreeCounters, Watcher
from depcache.cache.roots import Roots, nodes_below
from depcache.cache.shares import FairQueue, Shares
from depcache.cache.tiers import TierStack
from depcache.cache.victims import VictimQueue


class KVTree(Roots):
    """Cached KV by namespace. A namespace (tenant salt, LoRA, layout family) has roots of its own.

    The KV of a *resident* node is on the device, and so is that of its ancestors. Nodes that
    are not resident stay for a copy in a lower tier or for a request that waits for them;
    matching on the device passes them by.

    Conservation: `num_evictable + num_locked` is the number of device slots the tree owns.
    Nodes that are locked, or have resident children or tails, are never evicted. `version` changes
    whenever the set of resident tokens changes, so a plan made at the same version is still right.
    `victims` is the queue of what may be evicted.
    Not thread-safe: one scheduler owns it.

    tiers    those below the device; they are told of splits, new roots and copies of no use
    watcher  is told of the clock and of evictions from every tier
    shares   what tenants keep of every tier; None: the least worthy goes, whoever's it is
    public_of  from a namespace to one that its requests may read as well, or None
    """

    def __init__(
        self,
        policy: EvictionPolicy | None = None,
        tiers: TierStack | None = None,
        watcher: Watcher | None = None,
        shares: Shares | None = None,
        public_of: Callable[[Any], Hashable | None] | None = None,
    ) -> None:
        # The waiting requests' places in the queue, 0 is next; kept by `plan.lookahead`.
        self.rank: dict[Hashable, int] = {}
        self.policy: EvictionPolicy = policy or Lru()
        self.policy.attach(self)
        self.counters = TreeCounters()
        super().__init__(TierStack() if tiers is None else tiers, public_of)
        self.watcher = watcher
        self._tick = self.version = 0
        self.shares = shares
        self.victims = self.make_queue()
        self.reset()

    def reset(self) -> None:
        """Forget everything. The caller frees the slots. Old handles must not be used again."""
        self._roots.clear()
        self.rank.clear()
        self.victims.clear()
        self.tiers.clear()
        self.num_evictable = self.num_locked = self.num_nodes = self.num_resident = 0
        self.version += 1

    def make_queue(self) -> VictimQueue:
        """A queue of victims for one tier."""
        worth = self.policy.priority
        return VictimQueue(worth) if self.shares is None else FairQueue(worth, self.shares)

    # -- looking ---------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV is on the device."""
        return self.num_evictable + self.num_locked

    path = staticmethod(path_of)
    path_key = staticmethod(path_key_of)

    def walk(self, node: Node, key: bytes, *, only_resident: bool = True) -> tuple[list[Node], int]:
        """Follow `key` down from `node` as far as it is resident, or as far as there are nodes.

        Returns the nodes passed and the number of matched tokens. A match that ends inside a
        node splits it, so the nodes cover exactly the matched tokens; nothing else changes.
        """
        path: list[Node] = []
        at, size = 0, len(key)
        while at < size:
            child = node.children.get(first_token(key[at : at + TOKEN_BYTES]))
            if child is None or (only_resident and child.slots is None):
                break
            end = at + len(child.key)
            if end <= size and key[at:end] == child.key:
                path.append(child)
                node, at = child, end
                continue
            matched = common_prefix_tokens(child.key, key[at:])
            path.append(self.split(child, matched))
            at += matched * TOKEN_BYTES
            break
        return path, at // TOKEN_BYTES

    # -- growing ---------------------------------------------------------------------------

    def split(self, node: Node, num_tokens: int) -> Node:
        """Cut `node` after `num_tokens`; returns the new upper node.

        `node` stays the lower half, with its children and locks: whoever holds it still
        holds the end of the same run. Slots, homes and accounting are unchanged.
        """
        parent = node.parent
        if parent is None or not 0 < num_tokens < node.num_tokens:
            raise ValueError(f"cannot split {node!r} after {num_tokens} tokens")
        upper = Node(node.key[: num_tokens * TOKEN_BYTES], None, node.home, parent)
        if node.slots is not None:
            upper.slots, node.slots = node.slots[:num_tokens], node.slots[num_tokens:]
            upper.num_resident_children = 1
            self.num_resident += 1
        else:
            self.version += 1  # a plan that would load `node` means both halves
        upper.locks = 1 if node.locks else 0
        upper.hits, upper.last_use = node.hits, node.last_use
        upper.born, upper.worth, upper.cost = node.born, node.worth, node.cost
        upper.waiters = dict(node.waiters) if node.waiters else None
        node.cut(upper)
        node.home += num_tokens
        self.num_nodes += 1
        if node.path_hash:
            upper.path_hash = crc32(upper.key, parent.path_hash)
        self.tiers.note_split(upper, node)
        if self.policy.weighs_size:
            self.offer(node)  # it is smaller now
        return upper

    def grow(self, node: Node, key: bytes, home: int) -> list[Node]:
        """The nodes that spell exactly `key` below `node`, resident or not; made where missing.

        home  position of the first token of `key`; matters for nodes that are made
        """
        path: list[Node] = []
        at, size = 0, len(key)
        while at < size:
            child = node.children.get(first_token(key[at : at + TOKEN_BYTES]))
            if child is None:
                child = Node(key[at:], None, home + at // TOKEN_BYTES, node)
                if isinstance(node, Root):
                    self._keep(node)
                node.children[child.first_token] = child
                self.num_nodes += 1
            elif key[at : at + len(child.key)] != child.key:
                child = self.split(child, common_prefix_tokens(child.key, key[at:]))
            path.append(child)
            node = child
            at += len(child.key)
        return path

    def insert(
        self,
        node: Node,
        key: bytes,
        slots: np.ndarray,
        home: int,
        *,
        num_cached: int = 0,
        num_computed: int = 0,
        uses: int = 1,
    ) -> Insertion:
        """Add the KV of the run `key` below the resident `node`. What is present is kept.

        slots  (num_tokens,) int64, one per token of `key`; the tail that was not present
               becomes the tree's (a copy is taken), the caller keeps the rest
        home   position that the key of the first token was rotated for
        num_cached, num_computed  what the request found and computed, for policies that weigh
               the cost of computing it again
        uses   what new nodes are counted at once as used
        """
        path, present = self.walk(node, key)
        end = path[-1] if path else node
        present_slots = slots_of(path)
        num_added = len(key) // TOKEN_BYTES - present
        if num_added:
            owned = np.array(slots[present:], dtype=np.int64)
            at = 0
            for added in self.grow(end, key[present * TOKEN_BYTES :], home + present):
                self.make_resident(added, owned[at : at + added.num_tokens], home + present + at)
                added.hits += uses
                self.policy.note_insertion(added, num_cached, num_computed)
                at += added.num_tokens
                end = added
            self.counters.inserted += num_added
            self.offer(end)
        return Insertion(present, present_slots, end, num_added)

    def make_resident(self, node: Node, slots: np.ndarray, home: int | None = None) -> None:
        """Give a node its device KV; its parent must be resident. Does not offer it for eviction.

        home  position of its first token where the KV was computed; None: it is that of the
              node's copy, from which the KV was loaded
        """
        parent = node.parent
        assert parent is not None
        if home is not None and home != node.home:
            self.tiers.release(node)
            node.home = home
        node.slots = slots
        node.born = node.last_use = self.tick()
        if not node.copies:
            node.hits, node.worth, node.cost = 0, 0.0, 0.0
        self._gain(parent)
        self.num_resident += 1
        self.num_evictable += node.num_tokens
        self.victims.count(node, node.num_tokens)
        self.version += 1

    def _gain(self, above: Node) -> None:
        """One more child of `above`, or tail behind it, is resident."""
        above.num_resident_children += 1
        if above.num_resident_children == 1:
            self.victims.withdraw(above)
            if isinstance(above, Root):
                for end in above.context:
                    self._gain(end)

    def _lose(self, above: Node) -> None:
        """One less is."""
        above.num_resident_children -= 1
        if not above.num_resident_children:
            self.offer(above)
            if isinstance(above, Root):
                for end in above.context:
                    self._lose(end)

    # -- using -----------------------------------------------------------------------------

    def tick(self) -> int:
        """Next tick of the tree's clock. A counter, not a time: ranks of one model agree on it."""
        self._tick += 1
        if self.watcher is not None:
            self.watcher.note_tick(self._tick)
        return self._tick

    def touch(self, nodes: Iterable[Node], overheads: Mapping[Node, float] = NOTHING_AGAIN) -> None:
        """Count one use of each node. Call it while the nodes are locked.

        overheads  share of a node that is computed again all the same, 0 where it is not named
        """
        now = self.tick()
        used = list(nodes)
        self.policy.note_uses(used, now, overheads)
        for node in used:
            node.hits += 1
            node.last_use = now

    def lock(self, nodes: Iterable[Node]) -> None:
        """Keep `nodes` and their ancestors from eviction until `unlock` with the same nodes."""
        num_taken = 0
        withdraw = self.victims.withdraw
        for node in nodes:
            # A locked child counts once in its parent, so the walk stops at the first
            # ancestor that somebody holds already: the cost is the newly locked nodes.
            while (parent := node.parent) is not None:
                node.locks += 1
                if node.locks > 1:
                    break
                num_taken += node.num_tokens
                if not node.num_resident_children:
                    withdraw(node)
                node = parent
        self.num_evictable -= num_taken
        self.num_locked += num_taken

    def unlock(self, nodes: Iterable[Node]) -> None:
        """Undo one `lock` of the same nodes. Leaves that nobody holds become evictable."""
        num_freed = 0
        offer = self.victims.offer
        for node in nodes:
            while (parent := node.parent) is not None:
                if node.locks <= 0:
                    raise RuntimeError(f"unlock of a node that is not locked: {node!r}")
                node.locks -= 1
                if node.locks:
                    break
                num_freed += node.num_tokens
                # As `offer`, without the calls: every request unlocks all of its nodes.
                if not node.num_resident_children and node.slots is not None:
                    offer(node)
                node = parent
        self.num_evictable += num_freed
        self.num_locked -= num_freed

    # -- shrinking -------------------------------------------------------------------------

    def evict(self, num_tokens: int) -> list[tuple[Node, np.ndarray]]:
        """Take the KV of unlocked leaves, least worthy first, until `num_tokens` are gone.

        Returns the victims, children before parents, each with its slots (num_tokens,) int64.
        The caller keeps copies of them if it wants, then calls `prune` for each and frees the
        slots; `TierStack.evict` does so. Ends early when nothing is left. O(log n) per node.
        """
        victims: list[tuple[Node, np.ndarray]] = []
        num_dropped = 0
        while num_dropped < num_tokens:
            found = self.victims.pop()
            if found is None:
                break
            priority, node = found
            parent = node.parent
            assert node.slots is not None
            assert parent is not None
            victims.append((node, node.slots))
            if self.watcher is not None:
                self.watcher.note_eviction("device", node)
            num_dropped += node.num_tokens
            self.policy.note_eviction(priority)
            node.slots = None
            self.victims.count(node, -node.num_tokens)
            self._lose(parent)
        if not victims:
            return victims
        self.num_evictable -= num_dropped
        self.num_resident -= len(victims)
        self.version += 1
        self.counters.evicted += num_dropped
        self.counters.evicted_nodes += len(victims)
        return victims

    def forget(self, node: Node) -> tuple[list[np.ndarray], int]:
        """Give up the KV of `node` and of all below it in every tier, but not what is locked.

        What is below includes the tails behind contexts that it is part of.

        Copies in lower tiers go to `TierCopies.released`. Returns the device slots, the
        caller's to free, and the number of tokens that are locked and stay. O(nodes below).
        """
        below = nodes_below(node)
        freed: list[np.ndarray] = []
        num_kept = 0
        for each in reversed(below):  # children first
            parent = each.parent
            if each.locks or parent is None:
                num_kept += each.num_tokens
                continue
            self.tiers.release(each)
            if each.slots is not None:
                self.victims.withdraw(each)
                freed.append(each.slots)
                each.slots = None
                self.num_evictable -= each.num_tokens
                self.victims.count(each, -each.num_tokens)
                self.num_resident -= 1
                self._lose(parent)
            self.prune(each)
        self.version += 1
        return freed, num_kept

    def prune(self, node: Node) -> None:
        """Remove `node`, and ancestors, as far as nothing is kept by them."""
        # As `is_empty`, without the call: every evicted node comes this way.
        while node.slots is None and not (node.children or node.waiters or node.copies):
            parent = node.parent
            if parent is None:
                return
            del parent.children[first_token(node.key)]
            node.parent = None
            self.num_nodes -= 1
            if isinstance(parent, Root):
                if not parent.children:
                    self._drop(parent)
                return
            node = parent

    def offer(self, node: Node) -> None:
        """Value an evictable node anew, because it may be worth less than before."""
        if node.is_evictable:
            self.victims.offer(node)

    def revalue(self) -> None:
        """Value every evictable node anew, because the policy has changed its mind. O(n log n)."""
        self.victims.revalue()
        self.tiers.revalue()
