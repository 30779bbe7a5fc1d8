# SPDX-License-Identifier: Apache-2.0
"""Between the tree and the host tier: what leaves the device is kept, what is needed comes back.

Copies to the host run at once, when victims are taken, while their KV is still in place. Loads
run with the next prefill, in stream order: a free device slot may still be read or written by
the step in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from depcache.cache import HostCopies, KVTree, Node
from sglang_patches.tiers.host import HostTier


@dataclass(frozen=True, slots=True, eq=False)
class PendingLoad:
    """Rows to bring back before the next prefill: (n,) int64 slots each."""

    host_slots: np.ndarray
    device_slots: np.ndarray


class HostCache:
    """The host tier of one cache. Counters are in tokens."""

    def __init__(self, tree: KVTree, mover: HostTier) -> None:
        self.copies = HostCopies(tree)
        self.mover = mover
        self.stored = 0
        self.loaded = 0
        self.dropped = 0
        self._tree = tree
        self._pending: list[PendingLoad] = []
        self._freed: list[np.ndarray] = []
        tree.demote = self.demote

    def clear(self) -> None:
        """Everything is forgotten; for a tree that was reset."""
        self._pending.clear()
        self._freed.clear()
        self.mover.clear()

    def demote(self, victims: list[tuple[Node, np.ndarray]]) -> None:
        """Keep what is being evicted from the device, as far as there is room.

        victims  (node, device slots), children before parents
        """
        if self._pending:
            self._cancel(np.concatenate([slots for _, slots in victims]))
        wanted = [(node, slots) for node, slots in victims if node.host is None]
        num_wanted = sum(len(slots) for _, slots in wanted)
        if num_wanted > self.mover.num_free:
            self._free(self.copies.evict(num_wanted - self.mover.num_free))
            self._return_freed()
        # A copy is of no use without those above it, so the parents, which come last, go first.
        chosen: list[tuple[Node, np.ndarray]] = []
        room = self.mover.num_free
        for node, slots in reversed(wanted):
            if len(slots) > room or not self._is_reachable(node):
                self.dropped += len(slots)
                continue
            room -= len(slots)
            chosen.append((node, slots))
            node.host = slots  # so that its children count as reachable; replaced below
        if not chosen:
            return
        num_chosen = sum(len(slots) for _, slots in chosen)
        host_slots = self.mover.alloc(num_chosen)
        assert host_slots is not None
        self.mover.store(np.concatenate([slots for _, slots in chosen]), host_slots)
        self.stored += num_chosen
        at = 0
        for node, slots in chosen:
            node.host = None
            self.copies.add(node, host_slots[at : at + len(slots)])
            at += len(slots)

    def load(
        self, nodes: list[Node], num_other: int, alloc: Callable[[int], np.ndarray | None]
    ) -> np.ndarray | None:
        """Make `nodes` resident, parents first; their rows arrive with the next prefill.

        num_other  further slots to allocate with them, the first of those returned
        alloc      gives device slots, evicting where it must; None when it cannot

        Returns all slots, or None when there are not enough: then nothing has changed.
        """
        num_tokens = sum(node.num_tokens for node in nodes)
        self.copies.pin(nodes)  # making room on the device must not drop them from here
        try:
            slots = alloc(num_other + num_tokens)
        finally:
            self.copies.unpin()
        if slots is None:
            return None
        at = num_other
        sources: list[np.ndarray] = []
        for node in nodes:
            assert node.host is not None
            sources.append(node.host)
            self._tree.make_resident(node, slots[at : at + node.num_tokens].copy())
            at += node.num_tokens
        self._pending.append(PendingLoad(np.concatenate(sources), slots[num_other:].copy()))
        self.loaded += num_tokens
        return slots

    def take_loads(self) -> PendingLoad | None:
        """Hand over the rows to load to the prefill that is being launched."""
        if self._tree.host_copies is not None and self.copies.released:
            for slots in self.copies.released:
                self._free(slots)
            self.copies.released.clear()
        if not self._pending:
            return None
        load = PendingLoad(
            np.concatenate([load.host_slots for load in self._pending]),
            np.concatenate([load.device_slots for load in self._pending]),
        )
        self._pending.clear()
        return load if len(load.host_slots) else None

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "nodes": self.copies.num_nodes,
            "cached_tokens": self.copies.num_tokens,
            "capacity_tokens": self.mover.num_tokens,
            "bytes_per_token": self.mover.bytes_per_token,
            "stored_tokens": self.stored,
            "loaded_tokens": self.loaded,
            "dropped_tokens": self.dropped,
            "evicted_tokens": self.copies.evicted,
        }

    @staticmethod
    def _is_reachable(node: Node) -> bool:
        above = node.parent
        return above is not None and (
            above.is_root or above.slots is not None or above.host is not None
        )

    def _cancel(self, device_slots: np.ndarray) -> None:
        """These slots are taken away before their rows arrived."""
        kept: list[PendingLoad] = []
        for load in self._pending:
            stays = ~np.isin(load.device_slots, device_slots)
            kept.append(PendingLoad(load.host_slots[stays], load.device_slots[stays]))
        self._pending = kept

    def _free(self, host_slots: np.ndarray) -> None:
        """Give host slots back, but not while a load that reads them is still to be launched."""
        self._freed.append(host_slots)
        self._return_freed()

    def _return_freed(self) -> None:
        if self._pending:
            return
        for slots in self._freed:
            if len(slots):
                self.mover.free(slots)
        self._freed.clear()
