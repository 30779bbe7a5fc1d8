# SPDX-License-Identifier: Apache-2.0
"""Tree, host tier and disk tier with real pools and real files, and a server's operations.

Every token's KV is a function of the path that leads to it and of its position, so any row in
any tier can be checked at any time.
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depcache.cache import KVTree, Node, Shares, make_policy
from depcache.cache.invariants import check_tree
from depcache.cache.node import TAIL_MARK
from depcache.cache.radix import to_key, to_tokens
from depcache.plan import SegmentTable, match_segments
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.residency import DiskResidency
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.host.pool import row_shape
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.host.tier import HostTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.backends import BEHAVIOUR, Behaviour
from tests.sglang_patches.tiers.disk.make import bits, make_pool

DEVICE_TOKENS = 48
HOST_TOKENS = 40
IDENTITIES = (
    (Namespace(None), b""),
    (Namespace("salt"), b""),
    (Namespace(None, "sequential"), b""),
    (Namespace(None), b"behind"),
    (Namespace(None), TAIL_MARK + b"a context"),
)
"""The identities of the roots; see `Root.identity`."""

TENANTS = (None, "salt")
"""Those whose names the settings of a server would say."""


class SlowHost(HostTier):
    """Its slots are read and written late now and then, so that much may happen before."""

    pauses_s = (0.0, 0.0, 0.0, 0.004)

    def read(self, host_slots: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        time.sleep(random.choice(self.pauses_s))
        return super().read(host_slots, out)

    def write(self, host_slots: np.ndarray, rows: np.ndarray) -> None:
        time.sleep(random.choice(self.pauses_s))
        super().write(host_slots, rows)


class World:
    """One cache with all its tiers, and the operations that a server does on it."""

    def __init__(
        self, folder: Path, mood: str, seed: int, disk_bytes: int, shares: Shares | None = None
    ) -> None:
        self.shares = shares
        self.rng = random.Random(seed)
        self.folder, self.mood, self.disk_bytes = folder, mood, disk_bytes
        self.held: list[Node] = []
        self.pool = make_pool(num_tokens=DEVICE_TOKENS, num_layers=2, head_dim=4)
        self.num_bytes = bits(self.pool, np.array([1])).shape[1]
        self.log: list[str] = []
        self.start()

    def start(self) -> None:
        """A new process: nothing is known but what is on disk."""
        policy = self.rng.choice(["lru", "lacr", "gdsf"])
        self.tree = KVTree(make_policy(policy), shares=self.shares)
        self.free = set(range(1, DEVICE_TOKENS + 1))
        self.held.clear()
        self.mover = SlowHost(self.pool, HOST_TOKENS * self.num_bytes)
        bandwidth = Bandwidth(self.num_bytes)
        self.host = HostResidency(self.tree, self.mover, bandwidth)
        self.tree.tiers.append(self.host)
        print_of_pool = Fingerprint({"weights": "w"}, row_shape(self.pool))
        config = {
            "module_path": "tests.sglang_patches.tiers.disk.backends",
            "class_name": "Moody",
            "mood": self.mood,
            "depcache_folder": str(self.folder / "values"),
        }
        tier = DiskTier(
            print_of_pool,
            self.folder,
            self.disk_bytes,
            backend="dynamic",
            backend_config=config,
            deadline_s=SLOWEST_S,
        )
        write_policy = self.rng.choice(["write_back", "write_through_selective", "write_through"])
        self.disk = DiskResidency(self.tree, self.host, tier, bandwidth, write_policy, TENANTS)
        self.tree.tiers.append(self.disk)
        self.log.append(f"start {policy} {write_policy}")

    # -- what the KV of a token is -----------------------------------------------------------

    def row(self, identity: Any, path: tuple[int, ...], position: int) -> bytes:
        name = repr((identity, path, position)).encode()
        return hashlib.shake_128(name).digest(self.num_bytes)

    def rows_of(self, node: Node) -> list[bytes]:
        identity = node.root.identity
        above = KVTree.path(node)
        tokens = [t for each in reversed(above) for t in to_tokens(each.key).tolist()]
        first = len(tokens) - node.num_tokens
        return [
            self.row(identity, tuple(tokens[: first + i + 1]), node.home + i)
            for i in range(node.num_tokens)
        ]

    def compute(self, identity: Any, tokens: list[int], slots: np.ndarray, home: int) -> None:
        """What a forward pass does: write the KV of tokens [len - len(slots), ..) to slots."""
        first = len(tokens) - len(slots)
        for i, slot in enumerate(slots.tolist()):
            row = self.row(identity, tuple(tokens[: first + i + 1]), home + i)
            data = torch.frombuffer(bytearray(row), dtype=torch.uint8)
            buffers = (*self.pool.k_buffer, *self.pool.v_buffer)
            for buffer, part in zip(buffers, data.chunk(len(buffers)), strict=True):
                buffer[slot].view(torch.uint8).reshape(-1).copy_(part)

    # -- operations --------------------------------------------------------------------------

    def alloc(self, num: int) -> np.ndarray | None:
        if num > len(self.free):
            for slots in self.tree.tiers.evict(self.tree, num - len(self.free)):
                self.free |= set(slots.tolist())
        if num > len(self.free):
            return None
        return np.array([self.free.pop() for _ in range(num)], np.int64)

    def tokens(self) -> list[int]:
        return [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, 9))]

    def request(self) -> None:
        """Fetch, wait or not, load what is in the host, compute the rest, cache it, be used."""
        identity, tokens = self.rng.choice(IDENTITIES), self.tokens()
        moves = identity[0].layout != "tree"
        position = self.rng.choice([0, 5]) if moves else 0
        rid = str(self.rng.random())
        table = SegmentTable.of_plain_prompt(np.array(tokens), position)
        found = match_segments(self.tree, self.tree.root(*identity), table, allow_shift=moves)
        in_host, on_disk = found.in_tiers
        self.disk.fetch(on_disk, in_host, rid)
        for _ in range(self.rng.randint(0, 3)):
            self.wait()
            self.disk.is_ready(rid)
        root = self.tree.root(*identity)  # a root goes with its last child, so it is asked anew
        found = match_segments(self.tree, root, table, allow_shift=moves, num_tiers=1)
        self.tree.lock(found.nodes)
        loaded: list[Node] = []
        [in_host] = found.in_tiers
        if in_host and self.host.load(in_host, 0, self.alloc) is not None:
            loaded = in_host
            self.tree.lock(loaded)
            if self.rng.random() < 0.2:  # not admitted after all
                self.tree.unlock(loaded)
                self.alloc(self.rng.randint(1, len(self.free) + 4))
                self.free = self.slots_of_nobody()
                loaded = []
        load = self.host.take_loads()
        if load is not None:
            load.run()
        path, num_found = self.tree.walk(self.tree.root(*identity), to_key(np.array(tokens)))
        self.tree.lock(path)
        rest = tokens[num_found:]
        own = self.alloc(len(rest)) if rest else None
        if own is not None and (not moves or all(n.home >= position for n in path)):
            self.compute(identity, tokens, own, position + num_found)
            above = path[-1] if path else self.tree.root(*identity)
            done = self.tree.insert(above, to_key(np.array(rest)), own, position + num_found)
            assert done.num_added == len(own)
            path.append(done.node)
            self.tree.lock([done.node])
        elif own is not None:
            self.free |= set(own.tolist())
        self.tree.touch(path)
        self.disk.release(rid)
        self.tree.unlock(found.nodes)
        self.tree.unlock(loaded)
        self.disk.note_used(path)
        if path and self.rng.random() < 0.3:
            self.held.append(path[-1])
            self.tree.lock([path[-1]])
        self.tree.unlock(path)

    def slots_of_nobody(self) -> set[int]:
        """After slots were taken and dropped: all that no node has."""
        owned = {s for n in self.tree.nodes() if n.slots is not None for s in n.slots.tolist()}
        return set(range(1, DEVICE_TOKENS + 1)) - owned

    def wait(self) -> None:
        if self.rng.random() < 0.5:
            self.disk.tier._reads.wait(0.002)
            self.disk.tier._writes.wait(0.002)
        self.disk.poll()

    def let_go(self) -> None:
        if self.held:
            self.tree.unlock([self.held.pop(self.rng.randrange(len(self.held)))])

    def make_room(self) -> None:
        for slots in self.tree.tiers.evict(self.tree, self.rng.randint(1, 12)):
            self.free |= set(slots.tolist())

    def forget(self) -> None:
        nodes = list(self.tree.nodes())
        if nodes:
            freed, _ = self.tree.forget(self.rng.choice(nodes))
            for slots in freed:
                self.free |= set(slots.tolist())

    def flush(self) -> None:
        self.tree.unlock(self.held)
        self.held.clear()
        in_use = self.disk.in_use()
        self.tree.reset()
        self.host.clear(in_use)
        self.disk.clear(keep_values=self.rng.random() < 0.5)
        self.free = set(range(1, DEVICE_TOKENS + 1))

    def restart(self) -> None:
        self.calm()
        self.disk.tier.close(5)
        self.start()

    def write_all(self) -> None:
        self.disk.write_all()

    def evict_from_host(self) -> None:
        self.host.make_room(self.rng.randint(1, HOST_TOKENS))

    def upset(self) -> None:
        """The storage fails, or hangs until it is calm again."""
        mood = BEHAVIOUR[self.mood]
        if self.rng.random() < 0.5:
            mood.fails = {self.rng.choice(["get", "set", "delete"])}
        else:
            mood.release.clear()
            mood.hangs = {self.rng.choice(["get", "set"])}

    def calm(self) -> None:
        mood = BEHAVIOUR[self.mood]
        mood.fails, mood.hangs = set(), set()
        mood.release.set()

    # -- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        check_tree(self.tree)
        held = {s for n in self.tree.nodes() if n.slots is not None for s in n.slots.tolist()}
        assert not held & self.free
        assert len(held) + len(self.free) == DEVICE_TOKENS
        self.tree.tiers.free_released()
        copies = self.host.copies.num_tokens
        moving = sum(
            len(t.slots) if t.owns_slots else sum(map(len, t.held))
            for t in (*self.disk._stores.values(), *self.disk._loads.values())
        )
        assert self.mover.num_free + copies + moving == HOST_TOKENS
        tier = self.disk.tier
        assert tier.used_bytes - tier.counters["undeleted_bytes"] <= self.disk_bytes
        for node in self.tree.nodes():
            expected = self.rows_of(node)
            if node.slots is not None:
                assert [row.tobytes() for row in bits(self.pool, node.slots)] == expected
            if "host" in node.copies:
                host_rows = HostTier.read(self.mover, node.copies["host"])
                assert [row.tobytes() for row in host_rows] == expected

    def check_at_rest(self) -> None:
        """When nothing is under way, nothing is pinned, waited for, or on its way."""
        self.calm()
        for finished in (self.disk.poll, self.disk.poll):
            while self.disk.tier.num_open:
                self.wait()
            finished()
        assert not self.disk._in_load
        assert self.disk._num_in_transit == sum(
            len(t.slots) for t in self.disk._stores.values() if t.owns_slots
        )
        if not self.disk._stores:
            assert not self.host.copies._pins


OPERATIONS = {
    "request": 30,
    "wait": 10,
    "let_go": 8,
    "make_room": 6,
    "evict_from_host": 3,
    "forget": 3,
    "write_all": 2,
    "upset": 1,
    "calm": 4,
    "flush": 0.3,
    "restart": 1,
}


def run(
    folder: Path, mood: str, seed: int, num_operations: int, shares: Shares | None = None
) -> World:
    BEHAVIOUR[mood] = Behaviour()
    (folder / "values").mkdir(parents=True)
    disk_bytes = 1 << 30 if seed % 2 else 6_000  # a few dozen tokens
    world = World(folder, mood, seed, disk_bytes, shares)
    names, weights = list(OPERATIONS), list(OPERATIONS.values())
    try:
        for _ in range(num_operations):
            name = world.rng.choices(names, weights)[0]
            world.log.append(name)
            getattr(world, name)()
            world.check()
            if world.rng.random() < 0.02:
                world.check_at_rest()
    except BaseException:
        print("\n".join(world.log[-40:]))
        raise
    finally:
        world.calm()
    world.check_at_rest()
    return world
