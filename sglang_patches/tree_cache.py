# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefix-cache contract on one side, the KV tree and its tiers on the other.

What is done for a request is in `dependency_requests` and, for those without dependency data,
which are treated exactly as SGLang's own RadixCache does, in `plain_requests`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

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

from depcache.cache import KVTree, Node, TierStack
from depcache.cache.node import slots_of
from depcache.config import Config
from sglang_patches import compat
from sglang_patches.checkpoints import Checkpoints
from sglang_patches.choices import choose_policy, make_order, make_public, make_shares, tenants_of
from sglang_patches.contract import CacheParams, LoadBackParams, MatchParams, RadixKey, Request
from sglang_patches.observe.idle_ages import IdleAges
from sglang_patches.observe.metrics import NullMetrics
from sglang_patches.observe.root_events import RootEvents, Watchers
from sglang_patches.ranks import RankCheck
from sglang_patches.requests.dependency import DependencyRequests, make_state
from sglang_patches.requests.faults import Faults, is_broken, is_refused, note_fault
from sglang_patches.requests.plain import PlainRequests
from sglang_patches.requests.state import Handle, PendingCopy, RequestState, get_state
from sglang_patches.requests.waiting_queue import WaitingQueue
from sglang_patches.slots import Slots
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk.calls import StorageCalls
from sglang_patches.tiers.disk.residency import DiskResidency
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.host.pool import bytes_per_token
from sglang_patches.tiers.host.residency import HostResidency, PendingLoad
from sglang_patches.tiers.host.tier import HostTier
from sglang_patches.tiers.names import DISK, HOST

logger = logging.getLogger("depcache")

LAUNCH = "depcache_launch"  # attribute of a request: (time, new tokens of its batch)


class DepCacheTree(Checkpoints, StorageCalls, BasePrefixCache):
    """Radix-cache backend `depcache`. One per scheduler process; single-threaded."""

    is_depcache = True  # how hooks tell this cache from a stock one without importing it

    def __init__(
        self,
        params: CacheParams,
        config: Config,
        eviction_policy: str = "lru",
        host_tier: HostTier | None = None,
        disk_tier: DiskTier | None = None,
        *,
        measures: bool = True,
    ) -> None:
        """params: SGLang's CacheInitParams.

        disk_tier  only with a host tier
        measures   load or recompute by what is measured; without it whatever is there is loaded
        """
        self.disable = False
        self.page_size = 1
        self.req_to_token_pool = cast(Any, params.req_to_token_pool)
        self.token_to_kv_pool_allocator = cast(Any, params.token_to_kv_pool_allocator)
        self.device = self.token_to_kv_pool_allocator.device
        self.ages = IdleAges()
        self.tiers = TierStack()
        policy, shares = choose_policy(eviction_policy, config), make_shares(config)
        self.tree = KVTree(policy, self.tiers, self.ages, shares, make_public(config))
        self.metrics = NullMetrics()
        pool: Any = self.token_to_kv_pool_allocator.get_kvcache()
        self.bandwidth = Bandwidth(bytes_per_token(pool))
        self.slots = Slots(params, lambda num: self.evict(EvictParams(num_tokens=num)))
        self.tree.victims.capacity = self.slots.capacity
        self.host: HostResidency | None = None
        self.disk: DiskResidency | None = None
        if host_tier is not None:
            self.host = HostResidency(self.tree, host_tier, self.bandwidth)
            self.tiers.append(self.host)
            if disk_tier is not None:
                settings = (config.write_policy, tenants_of(config))
                self.disk = DiskResidency(
                    self.tree, self.host, disk_tier, self.bandwidth, *settings
                )
                self.tiers.append(self.disk)
        self.dependency = DependencyRequests(
            self.tree,
            self.slots,
            self.host,
            self.bandwidth,
            self._note_request,
            reencodes=config.reencode_positions,
            caches_tails=config.cache_tails,
        )
        self.plain = PlainRequests(self.tree, self.slots, self.host)
        self.root_events: RootEvents | None = None
        self.faults = Faults(self.tree, self.slots, self.dependency)
        self.waiting_queue = WaitingQueue(self.tree, make_state, make_order(self.tree, config))
        self.ranks = RankCheck(params.tp_cache_group)
        self.keeps_disk = False
        self.hides_counts = config.private_counts
        self._measures = measures
        if getattr(params, "enable_metrics", False):
            self.init_metrics_collector()

    # -- sizes and locks -------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything, in every tier; SGLang calls it when nothing runs.

        With `keeps_disk`, once, the values on disk stay and are found again as after a restart.
        """
        self.waiting_queue.clear()
        self.dependency.clear()
        in_use = None if self.disk is None else self.disk.in_use()
        self.tree.reset()
        if self.host is not None:
            self.host.clear(in_use)
        if self.disk is not None:
            self.disk.clear(keep_values=self.keeps_disk)
            self.keeps_disk = False
        if self.root_events is not None:
            self.root_events.held.note_all()
        self.metrics.publish()

    def evictable_size(self) -> int:
        return self.tree.num_evictable

    def protected_size(self) -> int:
        return self.tree.num_locked + self.dependency.num_private

    def total_size(self) -> int:
        return self.tree.num_tokens

    def pretty_print(self) -> None:
        logger.info("%s", self.describe())

    @property
    def counters(self) -> dict[str, int]:
        """Requests, and tokens of dependency prompts by what was done with them."""
        return {
            **self.dependency.counters,
            "plain_requests": self.plain.num_ended,
            "rejected_requests": self.faults.num_refused,
        }

    def describe(self) -> dict[str, Any]:
        """Sizes and counters, for the status route."""
        return {
            "nodes": self.tree.num_resident,
            "namespaces": len(self.tree.namespaces()),
            "cached_tokens": self.tree.num_tokens,
            "locked_tokens": self.tree.num_locked,
            "private_tokens": self.dependency.num_private,
            "free_tokens": self.slots.num_free,
            "capacity_tokens": self.slots.capacity,
            "evicted_tokens": self.tree.counters.evicted,
            "evicted_within_share_tokens": self.tree.victims.num_within,
            "eviction_policy": self.tree.policy.name,
            "tokens": self.counters,
            "root_events": None if self.root_events is None else self.root_events.describe(),
            HOST: None if self.host is None else self.host.describe(),
            DISK: None if self.disk is None else self.disk.describe(),
            "measured": self.bandwidth.describe(),
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
        dropped = self.tiers.evict(self.tree, params.num_tokens)
        if not dropped:
            return EvictResult()
        slots = np.concatenate(dropped)
        self.slots.free(slots)
        self.ranks.note(slots)
        self.update_eviction_metrics(len(slots), start_s)
        self.metrics.publish()
        return EvictResult(num_tokens_evicted=len(slots))

    def forget(self, nodes: list[Node]) -> tuple[int, int]:
        """Give up `nodes` and what is below them in every tier, but not what is in use.

        Returns the tokens that left the device, and those that stay because they are in use.
        """
        num_freed = num_kept = 0
        for node in nodes:
            freed, kept = self.tree.forget(node)
            for slots in freed:
                self.slots.free(slots)
                num_freed += len(slots)
            num_kept += kept
        if self.root_events is not None:
            self.root_events.held.note_all()
        self.conclude()
        return num_freed, num_kept

    def publish_roots(self, endpoint: str) -> None:
        """Say from now on which roots are held, on a ZeroMQ address.

        Raises ConfigError where it cannot be used.
        """
        self.root_events = RootEvents(self.tree, endpoint)
        self.tree.watcher = Watchers(self.ages, self.root_events.held)

    def _note_roots(self, state: RequestState) -> None:
        if self.root_events is not None:
            self.root_events.note_request(state)

    # -- matching --------------------------------------------------------------------------

    def match_prefix(self, params: MatchParams) -> MatchResult:
        req = params.req
        if req is None:  # only where prefill and decode are apart, which is refused at start
            return self._nothing(req)
        try:
            return self._match(req, params.key)
        except Exception as error:
            self.faults.refuse(req, error)
            self.metrics.publish()
            return self._nothing(req)

    def _match(self, req: Request, key: RadixKey) -> MatchResult:
        state = get_state(req)
        if req.to_finish is not None:
            # Aborted: SGLang runs a one-token stub, or a retracted prompt once more, only to
            # end it. Either is a plain prompt of the tokens it has now.
            self.dependency.let_go(req)
            return self._nothing(req)
        if state is None:
            state = make_state(req)
        if state is None:
            slots, handle = self.plain.match(req, key)
            num_moved = sum(node.num_tokens for node in handle.to_load)
        else:
            plan = self.dependency.match(req, state)
            slots, handle, num_moved = plan.shared_slots, state.handle, plan.num_moved
        self.ranks.note(slots)
        return compat.match_result(req, self.slots.to_device(slots), handle, num_moved)

    def _nothing(self, req: Request | None) -> MatchResult:
        return compat.match_result(req, self.slots.to_device(np.empty(0, np.int64)), Handle([]), 0)

    def init_load_back(self, params: LoadBackParams) -> tuple[Any, Handle]:
        """Allocate the slots of hits that are moved: shifted or loaded ones."""
        req, handle = params.req, params.best_match_node
        try:
            if handle.to_load:
                slots = self.plain.load_back(handle)
            else:
                state = get_state(req)
                assert state is not None
                slots = self.dependency.load_back(req, state)
                handle = state.handle
        except Exception as error:
            handle = self.faults.move_nothing(req, handle, error)
            slots = np.empty(0, np.int64)
        self.ranks.note(slots)
        return compat.load_back_result(req, self.slots.to_device(slots), handle)

    # -- forward passes ----------------------------------------------------------------------

    def take_loads(self) -> PendingLoad | None:
        """Hand the rows to load from the host tier to the prefill that is being launched."""
        return None if self.host is None else self.host.take_loads()

    def take_pending(self, state: RequestState) -> PendingCopy | None:
        """Hand the copies of `state` to the forward pass that is being launched."""
        return self.dependency.take_pending(state)

    def note_launch(self, reqs: list[Request], num_new: int) -> None:
        """An extend that computes `num_new` tokens is being launched."""
        if self._measures and self.host is not None:
            setattr(reqs[0], LAUNCH, (time.perf_counter(), num_new))

    def _note_result(self, req: Request) -> None:
        launch = getattr(req, LAUNCH, None)
        if launch is not None:
            setattr(req, LAUNCH, None)
            self.bandwidth.observe_prefill(launch[1], time.perf_counter() - launch[0])

    def note_new_weights(self) -> None:
        """The model's weights are about to change: what is on disk is of others."""
        if self.disk is not None:
            self.disk.turn_off("the weights of the model were changed while the server runs")

    def forget_gone(self, waiting: list[Request]) -> None:
        """Requests have left the queue, which is now `waiting`, some of them without running."""
        alive = {id(req) for req in waiting}
        self._release_orphans(lambda req: id(req) not in alive)
        self.waiting_queue.forget_gone(waiting)

    def forget_waiting(self, rid: str) -> None:
        """The request `rid` has left the queue without running."""
        self._release_orphans(lambda req: req.rid == rid)
        self.waiting_queue.forget(rid)

    def _release_orphans(self, is_gone: Callable[[Request], bool]) -> None:
        try:
            self.dependency.release_orphans(is_gone)
        except Exception as error:
            note_fault("free the copies of requests that are gone", error)

    # -- inserting ---------------------------------------------------------------------------

    def cache_unfinished_req(self, req: Request, chunked: bool = False, **_: Any) -> None:
        self.keep_computed(req, compat.num_computed(req), is_last=not chunked)

    def keep_computed(self, req: Request, num_rows: int, *, is_last: bool) -> None:
        """Insert what is computed so far, the rows [0, num_rows); `is_last`: of the prompt."""
        state = get_state(req)
        try:
            self._note_result(req)
            if is_broken(req):
                self.faults.keep_rows(req, num_rows)
            elif state is None:
                self.plain.cache_unfinished(req, num_rows)
            else:
                self.dependency.cache_unfinished(req, state, num_rows)
                self._note_roots(state)
        except Exception as error:
            self.faults.end(req, "cache the request's rows", error)
            self.faults.keep_rows(req, num_rows)
        if is_last:
            self.waiting_queue.finished(req)
        self.release_aborted_request(req.rid)

    def cache_finished_req(
        self, req: Request, is_insert: bool = True, *, kv_len_to_handle: int, **_: Any
    ) -> None:
        self._note_result(req)
        self.waiting_queue.finished(req)
        is_insert = is_insert and not is_refused(req)
        try:
            nodes = self._cache_finished(req, is_insert, kv_len_to_handle)
        except Exception as error:
            # The answer is complete and right, so it goes out.
            note_fault("give back what a finished request holds", error, req.rid)
            self.faults.give_back(req, kv_len_to_handle)
            nodes = []
        self.release_aborted_request(req.rid)
        if self.disk is not None:
            self.disk.note_used(nodes)
        self.metrics.publish()

    def _cache_finished(self, req: Request, is_insert: bool, num_rows: int) -> list[Node]:
        if is_broken(req):
            self.faults.give_back(req, num_rows)
            return []
        state = get_state(req)
        if state is None:
            return self.plain.cache_finished(req, is_insert, num_rows)
        nodes = self.dependency.cache_finished(req, state, is_insert, num_rows)
        self._note_roots(state)
        return nodes

    def _note_request(self, report: dict[str, Any], plan_s: float) -> None:
        try:
            self.metrics.note_request(report, plan_s)
        except Exception as error:
            note_fault("count a request", error)
