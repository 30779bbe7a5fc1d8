# SPDX-License-Identifier: Apache-2.0
"""Requests with dependency data: matched, moved and cached segment by segment.

SGLang gives every request one row of slots: cached slots first, then computed ones. So a match
permutes the prompt in such a way that hits come first (see `depcache.plan.request`); what is
behind it - admission, chunking, the overlap loop, decode, retraction, abort - is stock SGLang.

Who owns the slot of a row:

    row   0 ....... num_shared ....... num_hits ........... task_start ....... n .......
          | shared    | shifted copies   | missed context     | task           | output |
          | tree      | request          | tree, once cached  | see below      |        |

Loaded hits, behind the shifted ones, are the tree's. Task and output, the tail, are the request's
until they are cached behind the context, which is possible where all of it is the tree's: the task
when it is computed, the output at the end.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from depcache.cache import KVTree, Node
from depcache.cache.radix import to_key
from depcache.errors import PromptError
from depcache.plan import Offer, RequestPlan, plan_request
from depcache.prompt.wire import WireIds, parse_wire, without_wire
from sglang_patches import compat
from sglang_patches.contract import Request
from sglang_patches.observe.traces import TRACE, Watch, make_trace
from sglang_patches.requests.inner import take_inner
from sglang_patches.requests.state import (
    ATTRIBUTE,
    NO_FREE_SLOTS,
    POOL_TOO_SMALL,
    SOURCES,
    FirstSlice,
    Handle,
    PendingCopy,
    RequestState,
    get_state,
    to_log,
)
from sglang_patches.requests.tenants import kv_layout, namespace_of
from sglang_patches.slots import Slots
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.names import HOST

logger = logging.getLogger("depcache")

# SGLang clips what it reserves for output when it admits a request; the same bound here, so
# that "can never fit" means the same in both places.
MAX_RESERVED_NEW_TOKENS = 4096


def make_state(req: Request) -> RequestState | None:
    """Prepare a request of SGLang's; None for a plain one. Raises PromptError and nothing else.

    The scheduler calls it, where an error that nobody expects would end the server for everyone.
    """
    try:
        return _make_state(req)
    except PromptError:
        raise
    except Exception as error:
        logger.exception("request %s could not be prepared", req.rid)
        raise PromptError(
            f"the request could not be prepared ({type(error).__name__}: {error}): send it without "
            "dependency data, and report this"
        ) from error


def _make_state(req: Request) -> RequestState | None:
    params, inner = take_inner(getattr(req.sampling_params, "custom_params", None) or {})
    wire = parse_wire(params)
    if wire is None:
        return None
    if not isinstance(wire, WireIds):
        raise PromptError(
            "dependency data beside a text reached the scheduler: send requests through the "
            "server's tokenizer, or send input_ids with segments"
        )
    if req.session is not None or req.input_embeds is not None:
        raise PromptError(
            "sessions and input_embeds cannot be combined with dependency data: "
            "leave out one of them"
        )
    start_s = time.perf_counter()
    tokens = np.frombuffer(req.origin_input_ids, dtype=np.int64).copy()
    # KV of another layout has other positions, or other distances to its ancestors.
    state = RequestState.make(tokens, wire, namespace_of(req, kv_layout(wire)), inner)
    state.plan_s = time.perf_counter() - start_s
    if req.return_logprob and 0 <= req.logprob_start_len < state.table.task_start:
        raise PromptError(
            f"logprob_start_len {req.logprob_start_len} lies in the context, whose rows "
            f"are not in prompt order: use {state.table.task_start} or more"
        )
    setattr(req, ATTRIBUTE, state)
    # The lists are as long as the prompt has segments and are not needed any more; SGLang
    # keeps a reference cycle through this dict for the life of the request.
    req.sampling_params.custom_params = without_wire(params)
    return state


class DependencyRequests:
    """SGLang's calls for dependency requests. Counters are in tokens but for `requests`."""

    def __init__(
        self,
        tree: KVTree,
        slots: Slots,
        host: HostResidency | None,
        bandwidth: Bandwidth,
        on_request: Callable[[dict[str, Any], float], None],
        *,
        reencodes: bool = True,
        caches_tails: bool = True,
    ) -> None:
        """What SGLang's cache hands over to.

        on_request  called with the report of a request and the seconds spent on its plan
        reencodes   False copies shifted hits as they are, which gives worse answers
        caches_tails  False leaves what follows the context out of the cache
        """
        self.counters = dict.fromkeys(
            ("requests", *SOURCES, "tail", "shift_fallbacks"),
            0,
        )
        self.num_private = 0  # slots of shifted copies
        self.watch = Watch()
        self._tree = tree
        self._slots = slots
        self._host = host
        self._bandwidth = bandwidth
        self._on_request = on_request
        self._reencodes = reencodes
        self._caches_tails = caches_tails
        # Requests whose copies are allocated but not launched; id -> (request, state).
        self._pending: dict[int, tuple[Request, RequestState]] = {}

    def clear(self) -> None:
        """Forget everything; for a cache that was reset."""
        self.num_private = 0
        self._pending.clear()

    # -- matching --------------------------------------------------------------------------

    def match(self, req: Request, state: RequestState) -> RequestPlan:
        """Plan the request anew if need be, and put its prompt into the order of the plan."""
        start_s = time.perf_counter()
        self.release_pending(state)  # matched and loaded before, but not admitted
        plan = state.plan
        if plan is None or plan.version != self._tree.version or state.is_running:
            plan = self._make_plan(req, state)
        state.start(self._tree, plan)
        _permute(req, state, plan)
        state.plan_s += time.perf_counter() - start_s
        return plan

    def _make_plan(self, req: Request, state: RequestState) -> RequestPlan:
        plan = self._plan(req, state)
        num_loaded = plan.num_loaded + plan.num_tail_loaded
        if num_loaded and not self._bandwidth.should_load(num_loaded, HOST):
            state.allow_load = False
            plan = self._plan(req, state)
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
        if plan.num_locked + rows + new + 1 < self._slots.capacity:
            return plan
        return self._plan_without_shift(req, state, POOL_TOO_SMALL)

    def _plan_without_shift(self, req: Request, state: RequestState, reason: str) -> RequestPlan:
        state.allow_shift = False
        state.fallback_reason = reason
        self.counters["shift_fallbacks"] += 1
        return self._plan(req, state)

    def _plan(self, req: Request, state: RequestState) -> RequestPlan:
        tail_stop = state.num_tokens - 1 if self._caches_tails else 0
        if req.return_logprob and req.logprob_start_len >= 0:
            tail_stop = min(tail_stop, req.logprob_start_len)  # those from there on are computed
        return plan_request(
            self._tree,
            self._tree.root(state.namespace),
            state.table,
            allow_shift=state.allow_shift,
            allow_load=state.allow_load,
            tail_stop=tail_stop,
        )

    # -- shifted and loaded hits: what SGLang calls load-back --------------------------------

    def load_back(self, req: Request, state: RequestState) -> np.ndarray:
        """Allocate and return the slots of the shifted and loaded hits.

        The copies run with the prefill. SGLang calls this after admission, under the handle's lock.
        A source may still be written, and a free slot still be read, by the step in flight: only a
        copy in stream order is right. Without slots the request is planned again without moves.
        """
        assert state.plan is not None
        plan = state.plan
        if plan.loaded:
            assert self._host is not None
            if plan.num_tail_loaded:
                self._hang_tail(state, plan)
            targets = self._host.load(plan.loaded, plan.num_shifted, self._slots.alloc)
        else:
            targets = self._slots.alloc(plan.num_shifted)
        if targets is None:
            self.plan_without_moves(req, state, NO_FREE_SLOTS)
            return np.empty(0, np.int64)
        if plan.loaded:
            self._tree.lock(plan.loaded)
            state.handle.nodes += plan.loaded
            state.num_loaded = plan.num_loaded
            state.num_tail_loaded = plan.num_tail_loaded
            assert state.insertion is not None and state.tail is not None
            state.insertion.own_loaded()
            state.tail.own_loaded()
        if plan.num_shifted:
            shifted = plan.shifted
            state.pending = PendingCopy(
                sources=shifted.slots,
                targets=targets[: plan.num_shifted],
                homes=shifted.home if self._reencodes else shifted.placed,
                placed=shifted.placed,
            )
            state.num_private = plan.num_shifted
            self.num_private += plan.num_shifted
            self._pending[id(state)] = (req, state)
        if len(plan.loaded_again):
            again = targets[plan.num_shifted + plan.loaded_again]
            tail_start = len(targets) - plan.num_tail_loaded  # rows of the tail come last
            targets = np.concatenate((targets[:tail_start], again, targets[tail_start:]))
        return targets

    def plan_without_moves(self, req: Request, state: RequestState, reason: str) -> None:
        """Plan an admitted request again, with shared hits only.

        reason  goes into its report
        """
        self.release_pending(state)
        state.allow_load = False
        plan = self._plan_without_shift(req, state, reason)
        state.start(self._tree, plan)
        _permute(req, state, plan)
        compat.set_prefix(req, self._slots.to_device(plan.shared_slots))

    def _hang_tail(self, state: RequestState, plan: RequestPlan) -> None:
        root = state.table.tail_root(self._tree, self._tree.root(state.namespace))
        context = state.table.leaf_ends(plan.ends)
        assert root is not None and context is not None
        self._tree.hang(root, context)

    def take_pending(self, state: RequestState) -> PendingCopy | None:
        """Hand the copies of `state` to the forward pass that is being launched."""
        pending, state.pending = state.pending, None
        self._pending.pop(id(state), None)
        return pending

    def release_pending(self, state: RequestState) -> None:
        """Give up copies that were not launched."""
        pending = self.take_pending(state)
        if pending is not None:
            self._slots.free(pending.targets)
            self.num_private -= len(pending.targets)
            state.num_private = 0

    def let_go(self, req: Request) -> None:
        """Make a plain request of it: what is left of it has no context."""
        state = get_state(req)
        if state is not None:
            self.release_pending(state)
            setattr(req, ATTRIBUTE, None)

    def forget(self, state: RequestState) -> None:
        """Forget what a request had set up. Its rows and its locks are the caller's."""
        self.release_pending(state)
        self.num_private -= state.num_private
        state.forget_plan()

    def release_orphans(self, is_gone: Callable[[Request], bool]) -> None:
        """Free unlaunched copies of requests that left the waiting queue without running."""
        for req, state in list(self._pending.values()):
            if is_gone(req):
                self.release_pending(state)

    # -- inserting ---------------------------------------------------------------------------

    def cache_unfinished(self, req: Request, state: RequestState, num_rows: int) -> None:
        """Cache what is computed so far, the rows [0, num_rows)."""
        assert state.insertion is not None
        assert state.tail is not None
        self._begin(req, state)
        self._insert(req, state, num_rows)
        if num_rows >= state.num_tokens:
            state.tell(req)
        if state.trace is not None and num_rows <= state.num_tokens:
            state.trace["done_s"] = time.perf_counter()  # so far: the next chunk may be the last
        compat.set_computed(req, self._slots, num_rows)
        num_owned = int(state.insertion.owned.sum()) + state.tail.num_owned
        compat.set_protected_len(req, num_owned + state.num_private)

    def cache_finished(
        self, req: Request, state: RequestState, is_insert: bool, num_rows: int
    ) -> list[Node]:
        """Give back the rows of a request that ended; the nodes it has used."""
        insertion, tail = state.insertion, state.tail
        if insertion is None or tail is None:  # ended before it was ever matched
            self._slots.free(self._slots.row(req, num_rows))
            return []
        self._begin(req, state)
        if is_insert:
            self._insert(req, state, num_rows)
            state.tell(req)
        # Shifted copies, and rows that the tree did not take, are the request's own.
        is_own = np.ones(num_rows, bool)
        num_prompt = min(num_rows, state.num_tokens)
        is_own[:num_prompt] = ~insertion.owned[:num_prompt]
        task_start = state.table.task_start
        is_own[task_start : task_start + tail.num_owned] = False
        self._slots.free(self._slots.row(req, num_rows)[is_own])
        self.num_private -= state.num_private
        nodes = state.handle.nodes
        if compat.held_by(req) is not None:
            self._tree.unlock(nodes)
            compat.hold(req, Handle([]))  # only once, whatever comes behind
        # A retracted request comes back and is matched again from the start.
        state.forget_plan()
        return nodes

    def _begin(self, req: Request, state: RequestState) -> None:
        """Once per admission: count the hits and tell the client what was reused."""
        if state.is_running:
            return
        state.is_running = True
        self._tree.touch(dict.fromkeys(state.handle.nodes), state.node_overheads())
        if state.is_reported:  # it ran before and was retracted
            return
        state.is_reported = True
        report = state.report()
        self.counters["requests"] += 1
        for name in (*SOURCES, "tail"):
            self.counters[name] += report[name]
        told = report
        if self.watch.is_on:
            state.trace = make_trace(state)
            told = {**report, TRACE: state.trace}
        req.customized_info = {**(req.customized_info or {}), ATTRIBUTE: FirstSlice([told])}
        self._on_request(report, state.plan_s)
        logger.debug("rid=%s %s plan_ms=%.3f", req.rid, to_log(report), 1000 * state.plan_s)

    def _insert(self, req: Request, state: RequestState, num_rows: int) -> None:
        """Offer the rows [.., num_rows) that are not in the tree yet."""
        assert state.insertion is not None
        assert state.tail is not None
        next_row = state.insertion.next_row
        task_start = state.table.task_start
        if next_row is not None and next_row < num_rows:
            self._take(req, state, state.insertion.offer(num_rows, self._slots.row(req, num_rows)))
        # Else the row is not read from the device.
        if self._caches_tails and state.tail.is_open(num_rows - task_start):
            prompt = np.frombuffer(req.origin_input_ids, np.int64)[task_start:]
            answer = np.frombuffer(array("q", req.output_ids), np.int64)
            tokens = np.concatenate((prompt, answer))[: num_rows - task_start]
            slots = self._slots.row(req, num_rows)[task_start:]
            self._take(req, state, state.tail.offer(to_key(tokens), slots))

    def _take(self, req: Request, state: RequestState, offer: Offer) -> None:
        state.handle.nodes += offer.taken
        for duplicate in offer.duplicates:
            self._slots.write_row(req, duplicate.row, duplicate.cached)
        if offer.duplicates:
            self._slots.free(np.concatenate([duplicate.own for duplicate in offer.duplicates]))


def _permute(req: Request, state: RequestState, plan: RequestPlan) -> None:
    # `origin_input_ids_unpadded` keeps the client's order, for the detokenizer.
    permuted = array("q")
    permuted.frombytes(state.tokens[plan.order].tobytes())
    req.origin_input_ids = permuted
    req.full_untruncated_fill_ids = permuted + req.output_ids
