# SPDX-License-Identifier: Apache-2.0
"""Between the tree and the host tier: what leaves the device is kept, what is needed comes back.

Copies to the host run at once, when victims are taken, while their KV is still in place. Loads
run with the next prefill, in stream order: a free device slot may still be read or written by
the step in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from depcache.cache import KVTree, Node, Tier, TierCopies
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.host.tier import HostTier
from sglang_patches.tiers.names import HOST


@dataclass(frozen=True, slots=True, eq=False)
class PendingLoad:
    """Rows to bring back before the next prefill: (n,) int64 slots each."""

    host_slots: np.ndarray
    device_slots: np.ndarray
    mover: HostTier
    bandwidth: Bandwidth

    def run(self) -> None:
        """Copy them, on a GPU in the order of its current stream."""
        start_s = time.perf_counter()
        self.mover.load(self.host_slots, self.device_slots)
        if not self.mover.pool.has_gpu:  # there the host does not see when it is done
            seconds = time.perf_counter() - start_s
            self.bandwidth.observe_load(HOST, len(self.host_slots), seconds)


class HostResidency(Tier):
    """The host tier of one cache. Counters are in tokens, but for `dropped_nodes`."""

    def __init__(self, tree: KVTree, mover: HostTier, bandwidth: Bandwidth) -> None:
        super().__init__(TierCopies(tree, HOST))
        self.copies.victims.capacity = mover.num_tokens
        self.mover = mover
        self.dropped = 0
        self.dropped_nodes = {"no_room": 0, "no_parent": 0}
        self._tree = tree
        self._bandwidth = bandwidth
        # Nodes whose rows are to be loaded; their copies are pinned until the load is launched.
        self._loading: list[Node] = []
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []  # host, device

    def clear(self, in_use: np.ndarray | None = None) -> None:
        """Everything is forgotten; for a tree that was reset.

        in_use  slots that a transfer under way still writes; whoever started it frees them
        """
        self._loading.clear()
        self._pending.clear()
        self.mover.clear(in_use)

    def make_room(self, num_tokens: int) -> bool:
        """Give copies up, the least worthy first, until so many slots are free, if possible."""
        for node in self._evict_until(num_tokens):
            self._tree.prune(node)
        return self.mover.num_free >= num_tokens

    def free(self, copy: np.ndarray) -> None:
        self.mover.free(copy)

    def keep(self, leaving: list[tuple[Node, np.ndarray]]) -> list[tuple[Node, np.ndarray]]:
        """Keep what is being evicted from the device, as far as there is room.

        leaving  (node, device slots), children before parents, while their KV is still in place
        """
        wanted = [(node, slots) for node, slots in leaving if HOST not in node.copies]
        num_wanted = sum(len(slots) for _, slots in wanted)
        emptied = self._evict_until(min(num_wanted, self.mover.num_tokens))
        # A copy is of no use without those above it, so the parents, which come last, go first.
        chosen: dict[Node, np.ndarray] = {}
        room = self.mover.num_free
        for node, slots in reversed(wanted):
            if len(slots) > room or not (node.parent in chosen or _is_reachable(node)):
                self.dropped += len(slots)
                self.dropped_nodes["no_room" if len(slots) > room else "no_parent"] += 1
                continue
            room -= len(slots)
            chosen[node] = slots
        kept = self._copy(chosen) if chosen else []
        # Not before: a victim is kept for what it leads to, and now it has a copy of its own.
        for node in emptied:
            self._tree.prune(node)
        return kept

    def _copy(self, chosen: dict[Node, np.ndarray]) -> list[tuple[Node, np.ndarray]]:
        host_slots = self.mover.alloc(sum(map(len, chosen.values())))
        assert host_slots is not None
        self.mover.store(np.concatenate(list(chosen.values())), host_slots)
        at = 0
        for node in chosen:
            self.copies.add(node, host_slots[at : at + node.num_tokens])
            at += node.num_tokens
        return [(node, node.copies[HOST]) for node in chosen]

    def load(
        self, nodes: list[Node], num_other: int, alloc: Callable[[int], np.ndarray | None]
    ) -> np.ndarray | None:
        """Make `nodes` resident, parents first; their rows arrive with the next prefill.

        num_other  further slots to allocate with them, the first of those returned
        alloc      gives device slots, evicting where it must; None when it cannot

        Returns all slots, or None when there are not enough: then nothing has changed.
        """
        # Until the load is launched: making room on the device must not drop the copies, and
        # whoever evicts the nodes before that must find them, not rows that never arrived.
        self.copies.pin(nodes)
        num_tokens = sum(node.num_tokens for node in nodes)
        slots = alloc(num_other + num_tokens)
        if slots is None:
            self.copies.unpin(nodes)
            return None
        at = num_other
        sources: list[np.ndarray] = []
        for node in nodes:
            sources.append(node.copies[HOST])
            self._tree.make_resident(node, slots[at : at + node.num_tokens].copy())
            at += node.num_tokens
        self._loading += nodes
        self._pending.append((np.concatenate(sources), slots[num_other:].copy()))
        return slots

    def take_loads(self) -> PendingLoad | None:
        """Hand over the rows to load to the prefill that is being launched."""
        if not self._pending:
            return None
        host_slots, device_slots = map(np.concatenate, zip(*self._pending, strict=True))
        load = PendingLoad(host_slots, device_slots, self.mover, self._bandwidth)
        self._pending.clear()
        self.copies.unpin(self._loading)
        self._loading.clear()
        return load

    def _evict_until(self, num_free: int) -> list[Node]:
        """Nodes whose copies went so that so many slots are free; still to be pruned."""
        self._tree.tiers.free_released()
        nodes: list[Node] = []
        while self.mover.num_free < num_free:
            found = self.copies.evict_one()
            if found is None:
                break
            self.mover.free(found[1])
            nodes.append(found[0])
        return nodes

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            **self.copies.describe(),
            "free_tokens": self.mover.num_free,
            "capacity_tokens": self.mover.num_tokens,
            "bytes_per_token": self.mover.bytes_per_token,
            **self.mover.counters,
            "dropped_tokens": self.dropped,
        }


def _is_reachable(node: Node) -> bool:
    above = node.parent
    return above is not None and (above.is_root or above.slots is not None or bool(above.copies))
