# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefix-cache contract on one side, the KV tree on the other.

SGLang gives every request one row of slots: cached slots first, then computed ones. For a
dependency request `match_prefix` therefore permutes the prompt so that hits come first (see
`depcache.plan.request`); everything behind it - admission, chunking, the overlap loop,
decode, retraction, abort - is stock SGLang.

Who owns the slot of a row:

    row   0 ....... num_shared ....... num_hits ........... task_start ....... n .......
          | shared    | shifted copies   | missed context     | task           | output |
          | tree      | request          | tree, once cached  | request        | request|

A plain request (no dependency data) is treated exactly as SGLang's own RadixCache does.
"""

from __future__ import annotations

import logging
import time
from array import array
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    MatchResult,
)

from depcache.cache import Insertion, KVTree, Node, make_policy
from depcache.cache.node import slots_of, to_key
from depcache.config import load_config
from depcache.errors import PromptError
from depcache.plan import RequestPlan, make_scheduler, plan_request
from depcache.prompt.wire import PREFIX as WIRE_PREFIX
from depcache.prompt.wire import WireIds, parse_wire
from sglang_patches.host_cache import HostCache, PendingLoad
from sglang_patches.request_state import (
    ATTRIBUTE,
    FirstSlice,
    Handle,
    PendingCopy,
    RequestState,
    get_state,
)
from sglang_patches.tiers.host import HostTier
from sglang_patches.waiting_queue import WaitingQueue

logger = logging.getLogger("depcache")

# SGLang clips what it reserves for output when it admits a request; the same bound here, so
# that "can never fit" means the same in both places.
MAX_RESERVED_NEW_TOKENS = 4096


class DepCacheTree(BasePrefixCache):
    """Radix-cache backend `depcache`. One per scheduler process; single-threaded.

    Counters are in tokens of dependency prompts unless they say otherwise.
    """

    is_depcache = True  # how hooks tell this cache from a stock one without importing it

    def __init__(self, params: Any, eviction_policy: str = "lru") -> None:
        self.disable = False
        self.page_size = 1
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.device = self.token_to_kv_pool_allocator.device
        config = load_config()
        options = (
            {"history_weight": config.history_weight, "window": config.lookahead}
            if eviction_policy in ("lacr", "lacr_adaptive")
            else {}
        )
        self.tree = KVTree(make_policy(eviction_policy, **options))
        scheduler = (
            None
            if config.queue_order == "sglang"
            else make_scheduler(config.queue_order, self.tree, max_passed=config.max_passed)
        )
        self.waiting_queue = WaitingQueue(self.tree, self._make_state, scheduler)
        self.counters = {
            "requests": 0,
            "plain_requests": 0,
            "rejected_requests": 0,
            "shared": 0,
            "shifted": 0,
            "loaded": 0,
            "missed": 0,
            "plain": 0,
            "shift_fallbacks": 0,
        }
        self.host = _make_host_cache(self.tree, params, config.host_gb)
        self._num_private = 0
        # Requests whose copies are allocated but not launched; id -> (request, state).
        self._pending: dict[int, tuple[Any, RequestState]] = {}
        self._empty = torch.empty(0, dtype=torch.int64, device=self.device)
        if getattr(params, "enable_metrics", False):
            self.init_metrics_collector()

    # -- sizes and locks -------------------------------------------------------------------

    def reset(self) -> None:
        self.waiting_queue.clear()
        self.tree.reset()
        if self.host is not None:
            self.host.clear()
        self._num_private = 0
        self._pending.clear()

    def evictable_size(self) -> int:
        return self.tree.num_evictable

    def protected_size(self) -> int:
        return self.tree.num_locked + self._num_private

    def total_size(self) -> int:
        return self.tree.num_tokens

    def pretty_print(self) -> None:
        logger.info("%s", self.describe())

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "nodes": self.tree.num_resident,
            "cached_tokens": self.tree.num_tokens,
            "locked_tokens": self.tree.num_locked,
            "private_tokens": self._num_private,
            "free_tokens": self.token_to_kv_pool_allocator.available_size(),
            "capacity_tokens": self.token_to_kv_pool_allocator.size,
            "evicted_tokens": self.tree.counters.evicted,
            "eviction_policy": self.tree.policy.name,
            "tokens": dict(self.counters),
            "host": None if self.host is None else self.host.describe(),
        }

    def inc_lock_ref(self, node: Handle) -> IncLockRefResult:
        before = self.tree.num_evictable
        self.tree.lock(node.nodes)
        return IncLockRefResult(delta=self.tree.num_evictable - before)

    def dec_lock_ref(self, node: Handle, params: Any = None) -> DecLockRefResult:
        before = self.tree.num_evictable
        self.tree.unlock(node.nodes)
        return DecLockRefResult(delta=self.tree.num_evictable - before)

    def root_node_handle(self, extra_key: str | None = None) -> Handle:
        return Handle([])

    def is_root(self, node: Handle) -> bool:
        return not node.nodes

    def is_backuped(self, node: Handle) -> bool:
        return False

    def all_values_flatten(self) -> torch.Tensor:
        resident = [node for node in self.tree.nodes() if node.slots is not None]
        return torch.from_numpy(slots_of(resident))

    def evict(self, params: EvictParams) -> EvictResult:
        start_s = time.perf_counter()
        dropped = self.tree.evict(params.num_tokens)
        if not dropped:
            return EvictResult()
        slots = np.concatenate(dropped)
        self._free(slots)
        self.update_eviction_metrics(len(slots), start_s)
        return EvictResult(num_tokens_evicted=len(slots))

    # -- matching --------------------------------------------------------------------------

    def match_prefix(self, params: Any) -> MatchResult:
        req = params.req
        if req is None:
            return self._match_plain(params.key)
        state = get_state(req)
        if req.to_finish is not None:
            # Aborted: SGLang runs a one-token stub, or a retracted prompt once more, only to
            # end it. Either is a plain prompt of the tokens it has now.
            if state is not None:
                self._release_pending(state)
                setattr(req, ATTRIBUTE, None)
            return self._result(np.empty(0, np.int64), Handle([]))
        if state is None:
            try:
                state = self._make_state(req)
            except PromptError as error:
                # The HTTP process refuses such requests first; this is for those that reach
                # the scheduler in another way, so that a bad request ends alone.
                self.counters["rejected_requests"] += 1
                req.set_finish_with_abort(str(error))
                req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids
                return self._result(np.empty(0, np.int64), Handle([]))
        if state is None:
            return self._match_plain(params.key)
        return self._match_dependencies(req, state)

    def _make_state(self, req: Any) -> RequestState | None:
        wire = parse_wire(getattr(req.sampling_params, "custom_params", None) or {})
        if wire is None:
            return None
        if not isinstance(wire, WireIds):
            raise PromptError(
                "depcache_paths reached the scheduler as text: send requests through the "
                "server's tokenizer, or send input_ids with segments"
            )
        if req.session is not None or req.input_embeds is not None:
            raise PromptError(
                "sessions and input_embeds cannot be combined with dependency data: "
                "leave out one of them"
            )
        tokens = np.frombuffer(req.origin_input_ids, dtype=np.int64).copy()
        state = RequestState.make(tokens, wire, req.extra_key)
        if req.return_logprob and 0 <= req.logprob_start_len < state.table.task_start:
            raise PromptError(
                f"logprob_start_len {req.logprob_start_len} lies in the context, whose rows "
                f"are not in prompt order: use {state.table.task_start} or more"
            )
        setattr(req, ATTRIBUTE, state)
        # The lists are as long as the prompt has segments and are not needed any more; SGLang
        # keeps a reference cycle through this dict for the life of the request.
        given = req.sampling_params.custom_params
        req.sampling_params.custom_params = {
            key: value for key, value in given.items() if not key.startswith(WIRE_PREFIX)
        }
        return state

    def _match_dependencies(self, req: Any, state: RequestState) -> MatchResult:
        self._release_pending(state)  # matched and loaded before, but not admitted
        plan = state.plan
        if plan is None or plan.version != self.tree.version or state.is_running:
            plan = self._make_plan(req, state)
        state.start(plan)
        self._permute(req, state, plan)
        return self._result(plan.shared_slots, state.handle, plan.num_shifted + plan.num_loaded)

    def _make_plan(self, req: Any, state: RequestState) -> RequestPlan:
        root = self.tree.root(state.namespace)
        plan = plan_request(
            self.tree,
            root,
            state.table,
            allow_shift=state.allow_shift,
            allow_load=state.allow_load,
        )
        if not plan.num_shifted:
            return plan
        # A shifted hit takes a slot of its own while its source stays locked. If that cannot
        # fit even in an otherwise empty pool, SGLang would retry for ever and let nobody
        # else in; so recompute instead.
        new = min(
            max(req.sampling_params.max_new_tokens - len(req.output_ids), 0),
            MAX_RESERVED_NEW_TOKENS,
        )
        rows = state.num_tokens + len(req.output_ids) - plan.num_shared
        if plan.num_locked + rows + new + 1 < self.token_to_kv_pool_allocator.size:
            return plan
        return self._plan_without_shift(state, "the pool is too small to move cached rows")

    def _plan_without_shift(self, state: RequestState, reason: str) -> RequestPlan:
        state.allow_shift = False
        state.fallback_reason = reason
        self.counters["shift_fallbacks"] += 1
        root = self.tree.root(state.namespace)
        return plan_request(
            self.tree, root, state.table, allow_shift=False, allow_load=state.allow_load
        )

    @staticmethod
    def _permute(req: Any, state: RequestState, plan: RequestPlan) -> None:
        # `origin_input_ids_unpadded` keeps the client's order, for the detokenizer.
        permuted = array("q")
        permuted.frombytes(state.tokens[plan.order].tobytes())
        req.origin_input_ids = permuted
        req.full_untruncated_fill_ids = permuted + req.output_ids

    def _match_plain(self, key: Any) -> MatchResult:
        limit = len(key.token_ids) if key.limit is None else key.limit
        if limit <= 0:
            return self._result(np.empty(0, np.int64), Handle([]))
        root = self.tree.root((key.extra_key, "tree"))
        nodes, _ = self.tree.walk(root, _array_key(key.token_ids, limit))
        if not nodes:
            return self._result(np.empty(0, np.int64), Handle([]))
        slots = slots_of(nodes)
        return self._result(slots, Handle([nodes[-1]]))

    def _result(self, slots: np.ndarray, handle: Handle, num_shifted: int = 0) -> MatchResult:
        device_slots = torch.from_numpy(slots).to(self.device) if len(slots) else self._empty
        return MatchResult(device_slots, handle, handle, handle, host_hit_length=num_shifted)

    # -- shifted and loaded hits: what SGLang calls load-back ---------------------------------

    def init_load_back(self, params: Any) -> tuple[torch.Tensor, Handle]:
        """Allocate the slots of the shifted and loaded hits. The copies run with the prefill.

        SGLang calls this after admission and under the lock of `req.last_node`. A source may
        still be written, and a free slot still be read, by the step in flight: only a copy in
        stream order is right.
        """
        req = params.req
        state = get_state(req)
        assert state is not None
        assert state.plan is not None
        plan = state.plan
        if plan.loaded:
            assert self.host is not None
            targets = self.host.load(plan.loaded, plan.num_shifted, self._alloc)
        else:
            targets = self._alloc(plan.num_shifted)
        if targets is None:
            state.allow_load = False
            plan = self._plan_without_shift(state, "no slots were free for moving cached rows")
            state.start(plan)
            self._permute(req, state, plan)
            req.prefix_indices = torch.from_numpy(plan.shared_slots).to(self.device)
            return self._empty, state.handle
        if plan.loaded:
            self.tree.lock(plan.loaded)
            state.handle.nodes += plan.loaded
            state.num_loaded = plan.num_loaded
            state.owned[plan.num_hits - plan.num_loaded : plan.num_hits] = True
        if plan.num_shifted:
            shifted = plan.shifted
            state.pending = PendingCopy(
                sources=shifted.slots,
                targets=targets[: plan.num_shifted],
                homes=shifted.home,
                placed=shifted.placed,
            )
            state.num_private = plan.num_shifted
            self._num_private += plan.num_shifted
            self._pending[id(state)] = (req, state)
        return torch.from_numpy(targets).to(self.device), state.handle

    def _alloc(self, num_tokens: int) -> np.ndarray | None:
        """(num_tokens,) int64 free slots, evicting where it must; None when there are too few."""
        allocator = self.token_to_kv_pool_allocator
        missing = num_tokens - allocator.available_size()
        if missing > 0:
            self.evict(EvictParams(num_tokens=missing))
        slots = allocator.alloc(num_tokens)
        return None if slots is None else slots.cpu().numpy().astype(np.int64)

    def take_loads(self) -> tuple[HostTier, PendingLoad] | None:
        """Hand the rows to load from the host tier to the prefill that is being launched."""
        load = None if self.host is None else self.host.take_loads()
        return None if load is None or self.host is None else (self.host.mover, load)

    def take_pending(self, state: RequestState) -> PendingCopy | None:
        """Hand the copies of `state` to the forward pass that is being launched."""
        pending, state.pending = state.pending, None
        self._pending.pop(id(state), None)
        return pending

    def _release_pending(self, state: RequestState) -> None:
        pending = self.take_pending(state)
        if pending is not None:
            self._free(pending.targets)
            self._num_private -= len(pending.targets)
            state.num_private = 0

    def release_orphans(self, waiting: list[Any]) -> None:
        """Free unlaunched copies of requests that left the waiting queue without running."""
        if not self._pending:
            return
        alive = {id(req) for req in waiting}
        for req, state in list(self._pending.values()):
            if id(req) not in alive:
                self._release_pending(state)

    # -- inserting ---------------------------------------------------------------------------

    def cache_unfinished_req(self, req: Any, chunked: bool = False, **_: Any) -> None:
        state = get_state(req)
        if state is None:
            self._cache_plain_unfinished(req)
            return
        num_rows = req.extend_range.end
        self._begin(req, state)
        self._insert_context(req, state, num_rows)
        # A copy: the row is written again when the request decodes or is retracted.
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, :num_rows]
        req.prefix_indices = row.to(torch.int64, copy=True)
        req.cache_protected_len = int(state.owned.sum()) + state.num_private

    def cache_finished_req(
        self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int, **_: Any
    ) -> None:
        self.waiting_queue.finished(req)
        state = get_state(req)
        if state is None:
            self._cache_plain_finished(req, is_insert, kv_len_to_handle)
            return
        if state.plan is None:  # ended before it was ever matched
            self._free(self._row(req, kv_len_to_handle))
            return
        self._begin(req, state)
        if is_insert:
            self._insert_context(req, state, kv_len_to_handle)
        # Rows behind the context, shifted copies and duplicates are the request's own.
        is_own = np.ones(kv_len_to_handle, bool)
        num_prompt = min(kv_len_to_handle, state.num_tokens)
        is_own[:num_prompt] = ~state.owned[:num_prompt]
        self._free(self._row(req, kv_len_to_handle)[is_own])
        self._num_private -= state.num_private
        if req.last_node is not None:
            self.tree.unlock(state.handle.nodes)
        # A retracted request comes back and is matched again from the start.
        state.forget_plan()

    def _begin(self, req: Any, state: RequestState) -> None:
        """Once per admission: count the hits and tell the client what was reused."""
        if state.is_running:
            return
        state.is_running = True
        self.tree.touch(state.handle.nodes)
        if state.is_reported:  # it ran before and was retracted
            return
        state.is_reported = True
        report = state.report()
        self.counters["requests"] += 1
        for name in ("shared", "shifted", "loaded", "missed", "plain"):
            self.counters[name] += report[name]
        req.customized_info = {**(req.customized_info or {}), ATTRIBUTE: FirstSlice([report])}
        logger.debug("rid=%s %s", req.rid, report)

    def _insert_context(self, req: Any, state: RequestState, num_rows: int) -> None:
        """Offer the context rows [.., num_rows) that are not in the tree yet."""
        table = state.table
        assert state.plan is not None
        num_rows = min(num_rows, table.task_start)
        segment, num_segments = state.next_segment, table.num_segments
        row: np.ndarray | None = None
        root = self.tree.root(state.namespace)
        duplicates: list[np.ndarray] = []
        while segment < num_segments:
            start = table.starts[segment] + state.matched[segment]
            num_missing = table.stops[segment] - start
            if not num_missing:
                segment += 1
                continue
            first = state.next_row[segment]
            num_new = min(num_rows - first, num_missing)
            if num_new <= 0:
                break
            if row is None:
                row = self._row(req, num_rows)
            parent = table.parents[segment]
            above = state.ends[segment] or (root if parent < 0 else state.ends[parent])
            key = table.key[4 * start : 4 * (start + num_new)]
            home = table.placed[segment] + state.matched[segment]
            if above is None or not self._is_insertable(state, above, key, home):
                # It, and what hangs below it, stays with this request.
                state.ends[segment] = None
                state.matched[segment] += num_missing
                state.next_row[segment] += num_missing
                segment += 1
                continue
            inserted = self.tree.insert(
                above,
                key,
                row[first : first + num_new],
                home,
                num_cached=state.plan.num_hits,
                num_computed=state.num_tokens - state.plan.num_hits,
            )
            # Somebody cached the same tokens at the same place meanwhile: use theirs and give
            # ours back.
            if inserted.num_present:
                duplicates.append(row[first : first + inserted.num_present])
                self._write_row(req, first, inserted.present_slots)
            state.owned[first : first + num_new] = True
            self.tree.lock([inserted.node])
            state.handle.nodes.append(inserted.node)
            state.ends[segment] = inserted.node
            state.matched[segment] += num_new
            state.next_row[segment] += num_new
            if num_new < num_missing:
                break
            segment += 1
        state.next_segment = segment
        if duplicates:
            self._free(np.concatenate(duplicates))

    def _is_insertable(self, state: RequestState, above: Node, key: bytes, home: int) -> bool:
        """Whether what the tree has of the run already is the KV that this request computed.

        In the layouts that move keys it may have been cached at another position, either by a
        request that ran at the same time or because this one could not move it. Holding that
        copy beside our own would take slots that SGLang did not count when it admitted us.
        """
        if state.is_exact:
            return True
        path, _ = self.tree.walk(above, key)
        for node in path:
            if node.home != home:
                return False
            home += node.num_tokens
        return True

    # -- plain requests: as SGLang's RadixCache ------------------------------------------------

    def _cache_plain_unfinished(self, req: Any) -> None:
        tokens = req.get_fill_ids()
        row = self._row(req, len(tokens))
        inserted, handle = self._insert_plain(req, tokens, row)
        self.tree.unlock(req.last_node.nodes)
        protected, present = req.cache_protected_len, inserted.num_present
        if present > protected:
            self._free(row[protected:present])
            self._write_row(req, protected, inserted.present_slots[protected:])
        req.last_node = handle
        req.cache_protected_len = len(tokens)
        stored = self.req_to_token_pool.req_to_token[req.req_pool_idx, : len(tokens)]
        req.prefix_indices = stored.to(torch.int64, copy=True)

    def _cache_plain_finished(self, req: Any, is_insert: bool, num_rows: int) -> None:
        row = self._row(req, num_rows)
        kept_from = num_rows
        if is_insert:
            self.counters["plain_requests"] += 1
            tokens = (req.origin_input_ids + req.output_ids)[:num_rows]
            inserted, handle = self._insert_plain(req, tokens, row)
            self.tree.touch(self.tree.path(inserted.node))
            self.tree.unlock(handle.nodes)
            kept_from = inserted.num_present
        self._free(row[req.cache_protected_len : kept_from])
        if req.last_node is not None:
            self.tree.unlock(req.last_node.nodes)

    def _insert_plain(self, req: Any, tokens: Any, row: np.ndarray) -> tuple[Insertion, Handle]:
        """Cache the rows of a plain request; the handle comes back locked."""
        root = self.tree.root((req.extra_key, "tree"))
        # Counted once, when it ends: it may come here for every chunk.
        inserted = self.tree.insert(root, _array_key(tokens, len(tokens)), row, 0, uses=0)
        handle = Handle([] if inserted.node is root else [inserted.node])
        self.tree.lock(handle.nodes)
        return inserted, handle

    # -- slots -------------------------------------------------------------------------------

    def _row(self, req: Any, num_rows: int) -> np.ndarray:
        """(num_rows,) int64 slots of the request's first rows, on the host."""
        row = self.req_to_token_pool.req_to_token[req.req_pool_idx, :num_rows]
        return row.cpu().numpy().astype(np.int64)

    def _write_row(self, req: Any, start: int, slots: np.ndarray) -> None:
        stop = start + len(slots)
        self.req_to_token_pool.write(
            (req.req_pool_idx, slice(start, stop)),
            torch.from_numpy(slots).to(self.device, torch.int32),
        )

    def _free(self, slots: np.ndarray) -> None:
        if len(slots):
            self.token_to_kv_pool_allocator.free(torch.from_numpy(slots).to(self.device))


def _make_host_cache(tree: KVTree, params: Any, host_gb: float) -> HostCache | None:
    if not host_gb:
        return None
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    return HostCache(tree, HostTier(pool, int(host_gb * 10**9)))


def _array_key(tokens: Any, limit: int) -> bytes:
    """Raw key of the first `limit` tokens of an `array('q')` or a list of ints."""
    if isinstance(tokens, array):
        return to_key(np.frombuffer(tokens, dtype=np.int64)[:limit])
    return to_key(np.array(tokens[:limit], dtype=np.int64))
