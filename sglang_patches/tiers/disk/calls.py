# SPDX-License-Identifier: Apache-2.0
"""What SGLang asks of a cache with a HiCache storage, answered by the disk tier.

SGLang names a waiting request by its id, and from 0.5.23 on by a handle that has it.
"""

from __future__ import annotations

from typing import Any

from depcache.cache import KVTree, TierStack
from depcache.plan import match_segments
from sglang_patches.compat import rid_of
from sglang_patches.contract import Request
from sglang_patches.requests.dependency import make_state
from sglang_patches.requests.faults import note_fault
from sglang_patches.requests.waiting_queue import prompt_of
from sglang_patches.tiers.disk.residency import DiskResidency
from sglang_patches.tiers.names import DISK, HOST

QUIET_PASSES = 8
"""Ranks agree in one of so many passes while no request waits: it costs each of them a message."""


class StorageCalls:
    """The calls, for a cache with these fields. Without a disk tier they do nothing."""

    tree: KVTree
    tiers: TierStack
    disk: DiskResidency | None
    _num_passes = 0

    def poll(self, *, is_waited_for: bool = True, is_idle: bool = False) -> None:
        """Once in a pass: agree with other ranks, and conclude what has ended.

        is_waited_for  whether a request waits, on all ranks or on none
        is_idle        whether nothing has run since the pass before
        """
        if self.disk is not None:
            self._num_passes += 1
            self.disk.waits.note_pass(is_idle=is_idle)
            # Whatever goes wrong on one rank alone: the others wait for this call. So it depends
            # on nothing that a disk does.
            if is_waited_for or self._num_passes % QUIET_PASSES == 0:
                self.disk.tier.agree()
            self.conclude()

    def conclude(self) -> None:
        """Conclude transfers of the disk tier, and hear its neighbours. Does not block."""
        if self.disk is None:
            return
        try:
            self.disk.poll()
            self.disk.hear()
        except Exception as error:
            note_fault("conclude transfers of the disk tier", error)
            self.disk.turn_off(f"a fault of DepCache ({type(error).__name__}: {error})")

    def prefetch(self, req: Request) -> None:
        """A request enters the waiting queue: bring what it needs from disk to host memory."""
        if self.disk is None:
            return
        try:
            prompt = prompt_of(req, make_state)
            if prompt is None:
                return
            namespace, table = prompt
            found = match_segments(self.tree, self.tree.root(namespace), table)
            nodes = self.tiers.by_name(found.in_tiers)
            in_host, on_disk = (list(dict.fromkeys(nodes[name])) for name in (HOST, DISK))
            self.disk.fetch(on_disk, in_host, req.rid)
        except Exception as error:
            # It costs the loading. What is wrong with the request is said when it is matched.
            note_fault("fetch from disk", error, req.rid)

    def check_prefetch_progress(self, rid: Any) -> bool:
        """Whether a waiting request may be admitted."""
        rid = rid_of(rid)
        try:
            return self.disk is None or self.disk.is_ready(rid)
        except Exception as error:
            note_fault("ask for what comes from disk", error, rid)
            return True

    def pop_prefetch_loaded_tokens(self, rid: Any) -> int:
        """Tokens that came from disk for a request."""
        return 0 if self.disk is None else self.disk.waits.num_loaded(rid_of(rid))

    def release_aborted_request(self, rid: Any) -> None:
        """A waiting request is gone."""
        rid = rid_of(rid)
        if self.disk is not None:
            try:
                self.disk.release(rid)
            except Exception as error:
                note_fault("let go of what was fetched from disk", error, rid)
