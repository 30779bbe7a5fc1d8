# SPDX-License-Identifier: Apache-2.0
"""Between the tree and the disk tier: what is stored and given up, and what is fetched when.

Values are written from host memory and read into it, on threads of the tier; the scheduler
only begins and concludes. Host slots that a transfer uses belong to it until it is concluded,
whatever becomes of their node meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from depcache.cache import KVTree, LowerCopies, Node
from depcache.cache.node import TOKEN_BYTES, common_prefix_tokens, first_token
from depcache.prompt.layout import LAYOUTS
from sglang_patches.host_cache import HostCache
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk import DiskTier, Finished
from sglang_patches.tiers.value import DiskRef, Entry

logger = logging.getLogger("depcache")

WRITE_POLICIES = {"write_back": None, "write_through_selective": 2, "write_through": 1}
"""SGLang's names -> uses after which a node is written although it is still on the device."""

# Of the host's slots, so many may be on their way from the device to the disk at a time, and so
# many may be kept for requests that wait for the disk.
TRANSIT_SHARE = 1 / 16
PREFETCH_SHARE = 1 / 2
MAX_STORES = 256  # under way at a time
# A request waits so long for the disk where nobody knows yet how long computing would take.
UNKNOWN_WAIT_S = 2.0


@dataclass(slots=True, eq=False)
class _Transfer:
    """A value on its way. `node` is the end of the run, whatever was split off its front.

    home        of the first token, when it began
    owns_slots  the slots are freed when it ends, because no copy in host memory has them
    held        slots of copies that were given up while a store still read them
    is_void     what comes of it is of no use
    is_orphan   the tree was reset since
    """

    node: Node
    slots: np.ndarray
    home: int
    owns_slots: bool
    held: list[np.ndarray] = field(default_factory=list)
    is_void: bool = False
    is_orphan: bool = False


@dataclass(slots=True, eq=False)
class _Fetch:
    """What one waiting request has asked from the disk. `nodes` are pinned in host memory."""

    num_tokens: int
    waits_s: float
    open: set[int] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    num_loaded: int = 0
    first_asked: float | None = None


class DiskCache:
    """The disk tier of one cache. Counters are in tokens."""

    def __init__(
        self,
        tree: KVTree,
        host: HostCache,
        tier: DiskTier,
        bandwidth: Bandwidth,
        write_policy: str = "write_through_selective",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.copies = LowerCopies(tree, "disk", cut=DiskRef.split)
        self.tier = tier
        self.stored = self.loaded = self.recomputed = 0
        self._tree = tree
        self._host = host
        self._bandwidth = bandwidth
        self._uses_to_write = WRITE_POLICIES[write_policy]
        self._clock = clock
        self._digests: dict[Hashable, bytes] = {}
        self._stores: dict[int, _Transfer] = {}
        self._loads: dict[int, _Transfer] = {}
        self._in_store: set[Node] = set()
        self._in_load: dict[Node, int] = {}
        self._to_write: dict[Node, None] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._num_fetching = 0
        self._num_in_transit = 0
        # Values that no root has asked for yet, by namespace digest.
        self._unclaimed: dict[bytes, deque[tuple[Entry, DiskRef]]] = {}
        self._is_shut = False
        self._claim_all()
        tree.attach = self.attach
        host.on_kept = self.store
        host.on_release = self._hold_slots

    # -- the tree's side -------------------------------------------------------------------------

    def attach(self, root: Node, namespace: Hashable) -> None:
        """Hang what an earlier process stored for this namespace below its new root."""
        entries = self._unclaimed.pop(self._digest(namespace), None)
        for entry, ref in sorted(entries or (), key=lambda item: item[0].num_path):
            if not self._attach_one(root, entry, ref):
                self.tier.delete(ref)

    def forget_unclaimed(self, starts: Iterable[bytes], tenant: Hashable = None) -> int:
        """Delete what an earlier process stored and nobody has asked for yet; its tokens.

        starts  raw tokens of paths; all that begins with one of them is meant
        tenant  whose values; None for everyone's
        """
        wanted = set(starts)
        sizes = sorted({len(start) for start in wanted})
        only = {self._digest((tenant, layout)) for layout in LAYOUTS}
        num_tokens = 0
        for digest in list(self._unclaimed):
            if tenant is not None and digest not in only:
                continue
            kept: deque[tuple[Entry, DiskRef]] = deque()
            for entry, ref in self._unclaimed[digest]:
                if any(entry.path[:size] in wanted for size in sizes):
                    self.tier.delete(ref)
                    num_tokens += ref.num_tokens
                else:
                    kept.append((entry, ref))
            self._unclaimed[digest] = kept
            if not kept:
                del self._unclaimed[digest]
        return num_tokens

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
        self._fetches.clear()
        self._num_fetching = self._num_in_transit = 0
        self._unclaimed.clear()
        if self._is_shut:
            return
        if keep_values:
            self._claim_all()
        else:
            self.tier.clear()

    def note_used(self, nodes: Iterable[Node]) -> None:
        """A request has used `nodes` and what is above them: some are worth writing now."""
        if self._uses_to_write is None or self.is_off:
            return
        for node in nodes:
            if node.disk is None and node.hits >= self._uses_to_write:
                self._write_later(KVTree.path(node))

    def write_all(self) -> int:
        """Write whatever is on the device or the host and not on disk; the number of tokens."""
        for node in self._tree.nodes():
            if node.disk is None and (node.slots is not None or node.host is not None):
                self._to_write[node] = None
        self.poll()
        return self.num_waiting

    @property
    def is_off(self) -> bool:
        """Whether the disk is left alone: it keeps failing, or it holds KV of other weights."""
        return self._is_shut or self.tier.is_off

    @property
    def num_waiting(self) -> int:
        """Tokens that are to be written or being written."""
        return sum(node.num_tokens for node in (*self._to_write, *self._in_store))

    # -- storing ---------------------------------------------------------------------------------

    def store(self, nodes: Iterable[Node]) -> None:
        """Write nodes that have a copy in host memory, and what leads to them."""
        for node in nodes:
            self._write_later(KVTree.path(node))
        self._write_some()

    def _write_later(self, path: list[Node]) -> None:
        # Parents first: without them a value is of no use after a restart.
        for node in reversed(path):
            if node.disk is None and node not in self._in_store:
                self._to_write[node] = None

    def _store(self, node: Node, slots: np.ndarray, *, owns_slots: bool) -> bool:
        path = KVTree.path(node)
        key = b"".join(above.key for above in reversed(path))
        entry = Entry(self._digest_of(node), key, node.num_tokens, node.home)
        stored = [above for above in path if above.disk is not None]
        self.copies.pin(stored)
        has_room = self._make_room(self.tier.num_bytes(entry.num_path, entry.num_own))
        self.copies.unpin(stored)
        if not has_room:
            return False
        ticket = self.tier.store(entry, lambda rows: self._host.mover.read(slots, rows))
        if ticket is None:
            return False
        self._stores[ticket] = _Transfer(node, slots, node.home, owns_slots)
        self._in_store.add(node)
        if not owns_slots:
            self._host.copies.pin([node])
        return True

    def _make_room(self, num_bytes: int) -> bool:
        while self.tier.free_bytes < num_bytes:
            if self._unclaimed:  # of tenants that have not come back
                digest, entries = next(iter(self._unclaimed.items()))
                self.tier.delete(entries.popleft()[1])
                if not entries:
                    del self._unclaimed[digest]
                continue
            found = self.copies.evict_one()
            if found is None:
                return False
            self.tier.delete(found[1])
            self._tree.prune(found[0])
        return True

    def _write_some(self) -> None:
        """Begin to write what is waiting, as much as may be under way at a time."""
        if self.is_off:
            self._to_write.clear()
        limit = self._host.mover.num_tokens * TRANSIT_SHARE
        while self._to_write and len(self._stores) < MAX_STORES:
            node = next(iter(self._to_write))
            is_in_host = node.host is not None
            if not is_in_host and 0 < self._num_in_transit > limit - node.num_tokens:
                break
            del self._to_write[node]
            if node.parent is None or node.disk is not None or node in self._in_store:
                continue
            if node.host is not None:
                self._store(node, node.host, owns_slots=False)
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
            self._in_store.discard(transfer.node)
            if transfer.owns_slots:
                self._num_in_transit -= len(transfer.slots)
            else:
                self._host.copies.unpin([transfer.node])
        if done.ref is None:
            return
        pieces = None if transfer.is_void else _pieces(transfer, done.ref.num_tokens)
        if pieces is None:
            self.tier.delete(done.ref)
            return
        rest = done.ref
        for i, node in enumerate(pieces):
            ref = rest
            if i < len(pieces) - 1:
                ref, rest = rest.split(node.num_tokens)
            if node.disk is None:
                self.copies.add(node, ref)
                self.stored += node.num_tokens
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
        wanted = sum(node.num_tokens for node in nodes)
        if not wanted or self.is_off:
            return 0
        if not self._bandwidth.should_load(wanted, "disk", len(nodes)):
            self.recomputed += wanted
            return 0
        pinned = list(in_host or ())
        host = self._host
        if rid is not None and (
            self._num_fetching + wanted > host.mover.num_tokens * PREFETCH_SHARE
        ):
            return 0
        host.copies.pin(pinned)
        tickets, num_tokens = self._begin_loads(nodes)
        if rid is None or not tickets:
            host.copies.unpin(pinned)
            return num_tokens
        seconds = self._bandwidth.prefill_seconds(num_tokens) or UNKNOWN_WAIT_S
        self.release(rid)
        self._fetches[rid] = _Fetch(num_tokens, seconds, tickets, pinned)
        self._num_fetching += num_tokens
        return num_tokens

    def _begin_loads(self, nodes: list[Node]) -> tuple[set[int], int]:
        host, tickets, num_tokens = self._host, set[int](), 0
        self.copies.pin(nodes)  # making room in the host prunes nothing that has a copy on disk
        for node in nodes:
            ticket = self._in_load.get(node)
            if ticket is None and node.disk is not None and host.make_room(node.num_tokens):
                ticket = self._load(node)
            if ticket is None:
                break  # what is below is of no use without it
            tickets.add(ticket)
            num_tokens += node.num_tokens
        self.copies.unpin(nodes)
        return tickets, num_tokens

    def _load(self, node: Node) -> int | None:
        mover = self._host.mover
        slots = mover.alloc(node.num_tokens)
        assert slots is not None
        path = b"".join(above.key for above in reversed(KVTree.path(node)))

        def write(rows: np.ndarray) -> None:
            mover.write(slots, rows)

        ticket = self.tier.load(node.disk, path, self._digest_of(node), into=write)
        if ticket is None:
            mover.free(slots)
            return None
        self._loads[ticket] = _Transfer(node, slots, node.home, owns_slots=True)
        self._in_load[node] = ticket
        self.copies.pin([node])
        return ticket

    def _end_load(self, done: Finished) -> None:
        transfer = self._loads.pop(done.ticket)
        if not transfer.is_orphan:
            del self._in_load[transfer.node]
            self.copies.unpin([transfer.node])
        pieces = None if transfer.is_void else _pieces(transfer, len(transfer.slots))
        kept: list[Node] = []
        if pieces is None:
            self._host.mover.free(transfer.slots)
        else:
            kept = self._take_in(pieces, transfer.slots, done)
        if done.is_ok:
            self._bandwidth.observe_load("disk", len(transfer.slots), done.seconds)
        for fetch in self._fetches.values():
            if done.ticket in fetch.open:
                fetch.open.discard(done.ticket)
                fetch.num_loaded += sum(node.num_tokens for node in kept)
                self._host.copies.pin(kept)
                fetch.nodes += kept

    def _take_in(self, pieces: list[Node], slots: np.ndarray, done: Finished) -> list[Node]:
        """Give the nodes of a load their copies in host memory; those that got one."""
        assert done.ref is not None
        kept: list[Node] = []
        at = 0
        for node in pieces:
            part = slots[at : at + node.num_tokens]
            at += node.num_tokens
            is_same = node.disk is not None and node.disk.key == done.ref.key
            if done.is_ok and is_same and node.host is None:
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
        fetch = self._fetches.get(rid)
        if fetch is None:
            return True
        self.poll()
        if not fetch.open:
            return True
        now = self._clock()
        if fetch.first_asked is None:
            fetch.first_asked = now
        return now - fetch.first_asked > fetch.waits_s

    def num_loaded(self, rid: str) -> int:
        """Tokens that were brought from disk for this request."""
        fetch = self._fetches.get(rid)
        return 0 if fetch is None else fetch.num_loaded

    def release(self, rid: str) -> None:
        """The request runs or is gone; what it waited for may be evicted again."""
        fetch = self._fetches.pop(rid, None)
        if fetch is not None:
            self._host.copies.unpin(fetch.nodes)
            self._num_fetching -= fetch.num_tokens

    # -- every pass ------------------------------------------------------------------------------

    def poll(self) -> None:
        """Conclude what has ended and begin what may begin. Does not block."""
        for done in self.tier.poll() if self._stores or self._loads or self.tier.num_open else ():
            if done.kind == "store":
                self._end_store(done)
            else:
                self._end_load(done)
        for _, ref in self.copies.released:
            self.tier.delete(ref)
        self.copies.released.clear()
        self._host.take_released()
        if self._to_write:
            self._write_some()

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "nodes": self.copies.num_nodes,
            "cached_tokens": self.copies.num_tokens,
            "unclaimed_values": sum(map(len, self._unclaimed.values())),
            "waiting_tokens": self.num_waiting,
            "waiting_requests": len(self._fetches),
            "stored_tokens": self.stored,
            "loaded_tokens": self.loaded,
            "recomputed_tokens": self.recomputed,
            "evicted_tokens": self.copies.evicted,
            **self.tier.describe(),
        }

    # -- helpers ---------------------------------------------------------------------------------

    def _claim_all(self) -> None:
        for entry, ref in self.tier.entries():
            self._unclaimed.setdefault(entry.namespace, deque()).append((entry, ref))

    def _attach_one(self, root: Node, entry: Entry, ref: DiskRef) -> bool:
        """False when the value is of no use: nothing leads to it, or others have all of it."""
        path, above = entry.path, len(entry.path) - entry.num_own * TOKEN_BYTES
        node, at = root, 0
        while at < len(path):
            child = node.children.get(first_token(path[at : at + TOKEN_BYTES]))
            if child is None:
                break
            end = at + len(child.key)
            if path[at:end] != child.key:
                num_common = common_prefix_tokens(child.key, path[at:])
                child = self._tree.split(child, num_common)
                node, at = child, at + num_common * TOKEN_BYTES
                break
            node, at = child, end
        if at < above or at == len(path):
            return False
        if at > above:
            known, ref = ref.split((at - above) // TOKEN_BYTES)
            self.tier.delete(known)
        home = entry.home + (at - above) // TOKEN_BYTES
        self.copies.add(self._tree.grow(node, path[at:], home)[-1], ref)
        return True

    def _hold_slots(self, node: Node, slots: np.ndarray) -> bool:
        """Whether a store still reads these slots of a copy that was given up: then it frees
        them, and what it stores is of no use."""
        for transfer in self._stores.values():
            if np.isin(slots, transfer.slots).any():
                transfer.is_void = True
                transfer.held.append(slots)
                return True
        return False

    def _digest_of(self, node: Node) -> bytes:
        return self._digest(self._tree.namespace(node))

    def _digest(self, namespace: Hashable) -> bytes:
        digest = self._digests.get(namespace)
        if digest is None:
            digest = self.tier.fingerprint.namespace_digest(namespace)
            if len(self._digests) > 10_000:
                self._digests.clear()
            self._digests[namespace] = digest
        return digest


def _pieces(transfer: _Transfer, num_tokens: int) -> list[Node] | None:
    """The nodes that the run of a transfer is split into by now, parents first.

    None when the run is not in the tree any more, or was computed for another position.
    """
    pieces: list[Node] = []
    node: Node | None = transfer.node
    while num_tokens > 0:
        if node is None or node.parent is None:
            return None
        pieces.append(node)
        num_tokens -= node.num_tokens
        node = node.parent
    pieces.reverse()
    return pieces if num_tokens == 0 and pieces[0].home == transfer.home else None
