# SPDX-License-Identifier: Apache-2.0
"""Between the tree and the disk tier: what is stored and given up, and what is fetched when.

Values are written from host memory and read into it, on threads of the tier; the scheduler only
begins and concludes. Host slots that a transfer uses belong to it until then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from depcache.cache import KVTree, Node, Root, Tier, TierCopies
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk.found import FoundValues
from sglang_patches.tiers.disk.operation import Finished
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.transfer import Transfer
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.disk.waits import DiskWaits
from sglang_patches.tiers.disk.worth import WRITE_POLICIES, is_for_disk
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.names import DISK, HOST

logger = logging.getLogger("depcache")

# This share of the host's slots may be on the way from the device to the disk at a time.
TRANSIT_SHARE = 1 / 16
MAX_STORES = 256  # under way at a time


class DiskResidency(Tier):
    """The disk tier of one cache. Counters are in tokens."""

    def __init__(
        self,
        tree: KVTree,
        host: HostResidency,
        tier: DiskTier,
        bandwidth: Bandwidth,
        write_policy: str = "write_through_selective",
        tenants: Sequence[str | None] = (None,),
    ) -> None:
        super().__init__(TierCopies(tree, DISK, cut=DiskRef.split))
        self.tier = tier
        self.waits = DiskWaits(host, tier.now)
        self.stored = self.loaded = self.recomputed = 0
        self._tree = tree
        self._host = host
        self._bandwidth = bandwidth
        self._uses_to_write = WRITE_POLICIES[write_policy]
        self._digest = lru_cache(10_000)(
            lambda namespace, *behind: tier.fingerprint.namespace_digest(namespace.parts, *behind)
        )
        self._owner_of = lru_cache(10_000)(lambda each: tier.fingerprint.tenant_digest(each.tenant))
        self._stores: dict[int, Transfer] = {}
        self._loads: dict[int, Transfer] = {}
        self._in_store: dict[Node, Transfer] = {}
        self._in_load: dict[Node, Transfer] = {}
        self._to_write: dict[Node, None] = {}
        self._num_in_transit = 0
        self._is_shut = False
        self.found = FoundValues(tree, self.copies, tier, self._digest, tenants)

    # -- the tree's side -------------------------------------------------------------------------

    def start(self) -> None:
        self.found.read()

    def note_root(self, root: Root) -> None:
        self.found.attach(root)

    def free(self, copy: DiskRef) -> None:
        self.tier.delete(copy)

    def note_split(self, upper: Node, lower: Node) -> None:
        """What is done with `lower` is done with `upper`, which was cut off its front."""
        for on_way in (self._in_store, self._in_load):
            transfer = on_way.get(lower)
            if transfer is not None:
                transfer.nodes.insert(transfer.nodes.index(lower), upper)
                on_way[upper] = transfer
        if lower in self._to_write:
            self._to_write[upper] = None

    def borrows(self, node: Node, copy: np.ndarray) -> bool:
        """Whether a store still reads these slots in host memory: what it stores is of no use."""
        transfer = self._in_store.get(node)
        if transfer is None or transfer.owns_slots:
            return False
        transfer.is_void = True
        transfer.held.append(copy)
        return True

    def in_use(self) -> np.ndarray:
        """Host slots that transfers under way read or write, int64 (n,)."""
        transfers = (*self._stores.values(), *self._loads.values())
        return np.concatenate([t.slots for t in transfers] or [np.empty(0, np.int64)])

    def turn_off(self, why: str) -> None:
        """Neither read nor write any more; what is stored stays for a later server."""
        if not self._is_shut:
            logger.warning("disk tier: %s; it is not used any more", why)
        self._is_shut = True

    def clear(self, *, keep_values: bool = False) -> None:
        """Forget everything; for a tree that was reset, after its host tier was.

        keep_values  the values stay, and are found again as after a restart
        """
        for transfer in (*self._stores.values(), *self._loads.values()):
            transfer.is_void = transfer.is_orphan = transfer.owns_slots = True
            transfer.held.clear()
        self._in_store.clear()
        self._in_load.clear()
        self._to_write.clear()
        self.waits.clear()
        self._num_in_transit = 0
        self.found.clear()
        if self._is_shut:
            return
        if keep_values:
            self.found.read()
        else:
            self.tier.clear()

    def note_used(self, nodes: Iterable[Node]) -> None:
        """A request has used `nodes` and what is above them: some are worth writing now."""
        if self._uses_to_write is None or self.is_off:
            return
        for node in nodes:
            if DISK not in node.copies and node.hits >= self._uses_to_write:
                self._write_later(KVTree.path(node))

    def write_all(self) -> int:
        """Write whatever is on the device or the host and not on disk; the number of tokens."""
        for node in self._tree.nodes():
            if DISK not in node.copies and (node.slots is not None or node.copies):
                self._write_later(KVTree.path(node))
        self.poll()
        return self.num_waiting

    @property
    def is_off(self) -> bool:
        """Whether the disk is left alone: it keeps failing, or it holds KV of other weights."""
        return self._is_shut or self.tier.is_off

    @property
    def num_waiting(self) -> int:
        """Tokens that are to be written or being written. O(nodes of them)."""
        return sum(node.num_tokens for node in {**self._to_write, **self._in_store})

    # -- storing ---------------------------------------------------------------------------------

    def keep(self, leaving: list[tuple[Node, np.ndarray]]) -> list[tuple[Node, Any]]:
        """Begin to write nodes that have a copy in host memory, and what leads to them."""
        for node, _ in leaving:
            self._write_later(KVTree.path(node))
        self._write_some()
        return []

    def _write_later(self, path: list[Node]) -> None:
        if not path or not is_for_disk(path[-1].parent):
            return
        # Parents first: without them a value is of no use after a restart.
        for node in reversed(path):
            if DISK not in node.copies and node not in self._in_store:
                self._to_write[node] = None

    def _store(self, node: Node, slots: np.ndarray, *, owns_slots: bool) -> bool:
        key, owner = KVTree.path_key(node), self._owner_of(node.root.namespace)
        entry = Entry(self._digest(*node.root.identity), key, node.num_tokens, node.home, owner)
        stored = [above for above in KVTree.path(node) if DISK in above.copies]
        self.copies.pin(stored)
        has_room = self._make_room(self.tier.num_bytes(entry.num_path, entry.num_own))
        self.copies.unpin(stored)
        if not has_room:
            return False
        ticket = self.tier.store(entry, partial(self._host.mover.read, slots))
        if ticket is None:
            return False
        transfer = Transfer([node], slots, node.home, owns_slots)
        self._stores[ticket] = self._in_store[node] = transfer
        if not owns_slots:
            self._host.copies.pin([node])
        return True

    def _make_room(self, num_bytes: int) -> bool:
        while self.tier.free_bytes < num_bytes:
            if not self.found.give_up_one():
                return False
        return True

    def _write_some(self) -> None:
        """Begin to write what is waiting, as much as may be under way at a time."""
        if self.is_off:
            self._to_write.clear()
        limit = self._host.mover.num_tokens * TRANSIT_SHARE
        while self._to_write and len(self._stores) < MAX_STORES:
            node = next(iter(self._to_write))
            in_host = node.copies.get(HOST)
            if in_host is None and 0 < self._num_in_transit > limit - node.num_tokens:
                break
            del self._to_write[node]
            if node.parent is None or DISK in node.copies or node in self._in_store:
                continue
            if in_host is not None:
                self._store(node, in_host, owns_slots=False)
            elif node.slots is not None and self._host.make_room(node.num_tokens):
                self._store_from_device(node, node.slots)

    def _store_from_device(self, node: Node, device_slots: np.ndarray) -> None:
        slots = self._host.mover.alloc(node.num_tokens)
        assert slots is not None
        self._host.mover.store(device_slots, slots)
        if self._store(node, slots, owns_slots=True):
            self._num_in_transit += len(slots)
        else:
            self._host.mover.free(slots)

    def _end_store(self, done: Finished) -> None:
        transfer = self._stores.pop(done.ticket)
        for slots in [transfer.slots] if transfer.owns_slots else transfer.held:
            self._host.mover.free(slots)
        if not transfer.is_orphan:
            for node in transfer.nodes:
                del self._in_store[node]
            if transfer.owns_slots:
                self._num_in_transit -= len(transfer.slots)
            else:
                self._host.copies.unpin(transfer.nodes[-1:])
        if done.ref is None:
            return
        if not transfer.is_valid:
            self.tier.delete(done.ref)
            return
        rest = done.ref
        for node in transfer.nodes:
            ref = rest
            if node.num_tokens < rest.num_tokens:
                ref, rest = rest.split(node.num_tokens)
            if DISK not in node.copies:
                self.copies.add(node, ref, is_borrowed=not self.tier.owns(ref))
                self.stored += node.num_tokens
                self.found.note_held()
            else:
                self.tier.delete(ref)

    # -- loading ---------------------------------------------------------------------------------

    def fetch(
        self, nodes: list[Node], in_host: list[Node] | None = None, rid: str | None = None
    ) -> int:
        """Begin to bring `nodes`, which are on disk only, into host memory; their tokens.

        in_host  what a request needs besides and has in host memory already
        rid      the waiting request: all of this stays in host memory until `release`
        """
        if rid is not None:
            self.release(rid)
        wanted = sum(node.num_tokens for node in nodes)
        if not wanted or self.is_off:
            return 0
        if not self._bandwidth.should_load(wanted, DISK, len(nodes)):
            self.recomputed += wanted
            return 0
        if rid is not None and not self.waits.has_room(wanted):
            return 0
        pinned = list(in_host or ())
        self._host.copies.pin(pinned)
        transfers, num_tokens = self._begin_loads(nodes)
        if rid is None or not transfers:
            self._host.copies.unpin(pinned)
        else:
            seconds = self._bandwidth.prefill_seconds(num_tokens)
            self.waits.begin(rid, transfers, pinned, num_tokens, seconds)
        return num_tokens

    def _begin_loads(self, nodes: list[Node]) -> tuple[set[Transfer], int]:
        transfers, num_tokens = set[Transfer](), 0
        self.copies.pin(nodes)  # making room in the host prunes nothing that has a copy on disk
        for node in nodes:
            transfer = self._in_load.get(node) or self._load(node)
            if transfer is None:
                break  # what is below is of no use without it
            transfers.add(transfer)
            num_tokens += node.num_tokens
        self.copies.unpin(nodes)
        return transfers, num_tokens

    def _load(self, node: Node) -> Transfer | None:
        ref: DiskRef | None = node.copies.get(DISK)
        if ref is None:
            return None
        if not self.tier.has(ref):  # a part of a value that proved to be bad
            self.copies.drop(node)
            self._tree.prune(node)
            return None
        if not self._host.make_room(node.num_tokens):
            return None
        mover = self._host.mover
        slots = mover.alloc(node.num_tokens)
        assert slots is not None
        into = partial(mover.write, slots)
        ticket = self.tier.load(
            ref, KVTree.path_key(node), self._digest(*node.root.identity), into=into
        )
        if ticket is None:
            mover.free(slots)
            return None
        transfer = Transfer([node], slots, node.home, owns_slots=True)
        self._loads[ticket] = self._in_load[node] = transfer
        self.copies.pin([node])
        return transfer

    def _end_load(self, done: Finished) -> None:
        transfer = self._loads.pop(done.ticket)
        if not transfer.is_orphan:
            for node in transfer.nodes:
                del self._in_load[node]
            self.copies.unpin(transfer.nodes[-1:])
        kept: list[Node] = []
        if transfer.is_valid:
            kept = self._take_in(transfer, done)
        else:
            self._host.mover.free(transfer.slots)
        if done.is_ok:
            self._bandwidth.observe_load(DISK, len(transfer.slots), done.seconds)
        self.waits.note_end(transfer, kept)

    def _take_in(self, transfer: Transfer, done: Finished) -> list[Node]:
        """Give the nodes of a load their copies in host memory; those that got one."""
        assert done.ref is not None
        kept: list[Node] = []
        at = 0
        for node in transfer.nodes:
            part = transfer.slots[at : at + node.num_tokens]
            at += node.num_tokens
            ref: DiskRef | None = node.copies.get(DISK)
            is_same = ref is not None and ref.key == done.ref.key
            if done.is_ok and is_same and HOST not in node.copies:
                self._host.copies.add(node, part)
                self.loaded += node.num_tokens
                kept.append(node)
                continue
            self._host.mover.free(part)
            if done.is_gone and is_same:
                self.copies.drop(node)
                self._tree.prune(node)
        return kept

    # -- waiting requests ------------------------------------------------------------------------

    def is_ready(self, rid: str) -> bool:
        """Whether a request should wait no longer: all has arrived, or computing is faster."""
        if self.waits.is_open(rid):
            self.poll()
        return self.waits.is_ready(rid)

    def release(self, rid: str) -> None:
        """The request runs or is gone; what it waited for may be evicted again."""
        self.waits.release(rid)

    # -- every pass ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Conclude what has ended and begin what may begin. Does not block."""
        for done in self.tier.poll() if self._stores or self._loads or self.tier.num_open else ():
            if done.kind == "store":
                self._end_store(done)
            else:
                self._end_load(done)
        self._tree.tiers.free_released()
        if self._to_write:
            self._write_some()

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return self.copies.describe() | {
            "unclaimed_values": self.found.num_values,
            "waiting_tokens": self.num_waiting,
            "waiting_requests": len(self.waits),
            "stored_tokens": self.stored,
            "loaded_tokens": self.loaded,
            "recomputed_tokens": self.recomputed,
            **self.tier.describe(),
            "is_off": self.is_off,
        }

    def hear(self) -> None:
        """Find what neighbours on the same folder have stored, and leave them their room."""
        if not self._is_shut:
            self.found.hear()
