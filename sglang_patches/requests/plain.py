# SPDX-License-Identifier: Apache-2.0
"""Requests without dependency data: cached by their prefix, as SGLang's RadixCache does.

With a host tier their prefix also comes back from there, as with SGLang's HiCache.
"""

from __future__ import annotations

from array import array

import numpy as np

from depcache.cache import Insertion, KVTree, Node
from depcache.cache.node import slots_of
from depcache.cache.radix import to_key
from depcache.plan import SegmentTable, match_segments
from sglang_patches import compat
from sglang_patches.contract import RadixKey, Request
from sglang_patches.requests.state import Handle
from sglang_patches.requests.tenants import namespace_of
from sglang_patches.slots import Slots
from sglang_patches.tiers.host.residency import HostResidency


class PlainRequests:
    """SGLang's calls for plain requests. `num_ended` counts those that were cached at the end."""

    def __init__(self, tree: KVTree, slots: Slots, host: HostResidency | None) -> None:
        self.num_ended = 0
        self._tree = tree
        self._slots = slots
        self._host = host

    def match(self, req: Request, key: RadixKey) -> tuple[np.ndarray, Handle]:
        """Slots of the cached prefix, and its handle; `Handle.to_load` follows behind.

        key  SGLang's RadixKey: the tokens of `req` that may be matched
        """
        limit = len(key.token_ids) if key.limit is None else key.limit
        if limit <= 0:
            return np.empty(0, np.int64), Handle([])
        root = self._tree.root(namespace_of(req))
        raw = _array_key(key.token_ids, limit)
        nodes, num_found = self._tree.walk(root, raw)
        handle = Handle(nodes[-1:])
        if self._host is not None:
            handle.to_load = self._find_in_host(nodes[-1] if nodes else root, raw, num_found)
        return slots_of(nodes), handle

    def _find_in_host(self, above: Node, key: bytes, num_found: int) -> list[Node]:
        rest = np.frombuffer(key, "<i4")[num_found:]
        child = above.children.get(int(rest[0])) if len(rest) else None
        if child is None or not child.copies:
            return []
        table = SegmentTable.of_plain_prompt(rest, position=num_found)
        found = match_segments(self._tree, above, table, allow_shift=False, num_tiers=1)
        return found.loadable[0]

    def load_back(self, handle: Handle) -> np.ndarray:
        """Slots of the nodes that `handle` is to load, now part of it; none if there is no room."""
        nodes, handle.to_load = handle.to_load, []
        assert self._host is not None
        slots = self._host.load(nodes, 0, self._slots.alloc)
        if slots is None:
            return np.empty(0, np.int64)
        self._tree.lock(nodes[-1:])
        handle.nodes += nodes[-1:]
        return slots

    def cache_unfinished(self, req: Request, num_rows: int) -> None:
        """Cache the rows [0, num_rows), which are computed so far."""
        tokens = req.full_untruncated_fill_ids[:num_rows]
        row = self._slots.row(req, len(tokens))
        inserted, handle = self._insert(req, tokens, row)
        self._release(req)
        protected, present = compat.protected_len(req), inserted.num_present
        if present > protected:
            self._slots.free(row[protected:present])
            self._slots.write_row(req, protected, inserted.present_slots[protected:])
        compat.hold(req, handle)
        compat.set_protected_len(req, len(tokens))
        compat.set_computed(req, self._slots, len(tokens))

    def cache_finished(self, req: Request, is_insert: bool, num_rows: int) -> list[Node]:
        """Cache the rows of a request that ended, if `is_insert`; the nodes it has used."""
        row = self._slots.row(req, num_rows)
        kept_from = num_rows
        path: list[Node] = []
        if is_insert:
            self.num_ended += 1
            tokens = (req.origin_input_ids + req.output_ids)[:num_rows]
            inserted, handle = self._insert(req, tokens, row)
            path = self._tree.path(inserted.node)
            self._tree.touch(path)
            self._tree.unlock(handle.nodes)
            kept_from = inserted.num_present
        self._slots.free(row[compat.protected_len(req) : kept_from])
        self._release(req)
        return path

    def _release(self, req: Request) -> None:
        held = compat.held_by(req)
        if held is not None:
            self._tree.unlock(held.nodes)
            compat.hold(req, Handle([]))  # only once, whatever comes behind

    def _insert(
        self, req: Request, tokens: array[int] | list[int], row: np.ndarray
    ) -> tuple[Insertion, Handle]:
        """Cache the rows of a plain request; the handle comes back locked."""
        root = self._tree.root(namespace_of(req))
        # Counted once, when it ends: it may come here for every chunk.
        inserted = self._tree.insert(root, _array_key(tokens, len(tokens)), row, 0, uses=0)
        handle = Handle([] if inserted.node is root else [inserted.node])
        self._tree.lock(handle.nodes)
        return inserted, handle


def plain_tokens(req: Request) -> np.ndarray:
    """(num_tokens,) int64 prompt and output of a plain request."""
    return np.frombuffer(array("q", req.origin_input_ids) + array("q", req.output_ids), np.int64)


def _array_key(tokens: array[int] | list[int], limit: int) -> bytes:
    """Raw key of the first `limit` tokens of an `array('q')` or a list of ints."""
    if isinstance(tokens, array):
        return to_key(np.frombuffer(tokens, dtype=np.int64)[:limit])
    return to_key(np.array(tokens[:limit], dtype=np.int64))
