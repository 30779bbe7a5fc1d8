# SPDX-License-Identifier: Apache-2.0
"""What the SGLang releases name or shape in different ways; never behaviour of ours.

    0.5.17  a cache inserts, frees and unlocks at a request's end, and gets the cached slots as
            tensors (`cache_unfinished_req`, `cache_finished_req`)
    0.5.23  a cache inserts (`checkpoint`) and SGLang frees and unlocks; a match is a length, and
            what a request holds on the device is in `req.kv` (`sglang_patches.checkpoints`)

`sglang_patches.contract` has the fields that we use, those of one release apart.
"""

from __future__ import annotations

import copy
import inspect
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import torch
from sglang.srt.mem_cache import base_prefix_cache
from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_patches.contract import EarlierRequest, LaterRequest, Request

if TYPE_CHECKING:
    from sglang_patches.requests.state import Handle
    from sglang_patches.slots import Slots

HAS_CHECKPOINTS = hasattr(base_prefix_cache.BasePrefixCache, "checkpoint")
"""Whether it is 0.5.23 or later."""

ABORT_FUNCTIONS = (
    ()
    if HAS_CHECKPOINTS
    else ("abort_request", "_abort_on_waiting_timeout", "_abort_on_queued_limit")
)
"""Methods of the scheduler that drop waiting requests and do not tell every cache (`finish`)."""

JOINS_SALT = not HAS_CHECKPOINTS
"""Whether the OpenAI routes join a request's salt and its extra key."""

_NUMS_REAL = (
    "num_token_non_padded",
    "num_token_non_padded_cpu",
    "global_num_token_non_padded",
    "global_num_token_non_padded_cpu",
)
"""Fields of a ForwardBatch, of each release some: its tokens without padding."""

PREFIX = "depcache_prefix"
"""Attribute of a request: slots of its hits, from its match until it has a row (0.5.23)."""


def _earlier(req: Request) -> EarlierRequest:
    return cast(EarlierRequest, req)


def _later(req: Request) -> LaterRequest:
    return cast(LaterRequest, req)


def row_index(req: Request) -> int:
    """Returns the request's row in `req_to_token`."""
    index = _later(req).kv.req_pool_idx if HAS_CHECKPOINTS else _earlier(req).req_pool_idx
    assert index is not None
    return index


def has_row(req: Request) -> bool:
    """Whether the request was admitted and has a row."""
    index = _later(req).kv.req_pool_idx if HAS_CHECKPOINTS else _earlier(req).req_pool_idx
    return index is not None


def num_computed(req: Request) -> int:
    """Returns how many rows are computed after the extend that runs."""
    return _later(req).extend_end if HAS_CHECKPOINTS else _earlier(req).extend_range.end


def take_salt(obj: Any) -> Any:
    """Takes the `cache_salt` out of a GenerateReqInput, which has it as a field in 0.5.23."""
    salt = getattr(obj, "cache_salt", None)
    if salt is not None:
        obj.cache_salt = None
    return salt


def salt_of(req: Request) -> str | None:
    """Returns the salt of a request in the scheduler that did not come by way of `take_salt`."""
    return getattr(req, "cache_salt", None)  # 0.5.17 has no such field


def protected_len(req: Request) -> int:
    """Returns how many rows, from the first, are not the request's to free."""
    if HAS_CHECKPOINTS:
        return _later(req).kv.cache_protected_len
    return _earlier(req).cache_protected_len


def set_protected_len(req: Request, num_rows: int) -> None:
    """Says how many rows are not the request's to free."""
    if HAS_CHECKPOINTS:
        _later(req).kv.cache_protected_len = num_rows
    else:
        _earlier(req).cache_protected_len = num_rows


def set_prefix(req: Request, slots: torch.Tensor) -> None:
    """Says which rows of a request without a row need not be computed, by their slots."""
    if HAS_CHECKPOINTS:
        setattr(req, PREFIX, slots)
        _later(req).prefix_len = len(slots)
    else:
        _earlier(req).prefix_indices = slots


def set_computed(req: Request, slots: Slots, num_rows: int) -> None:
    """Says that the first `num_rows` rows of a running request need not be computed again."""
    if HAS_CHECKPOINTS:
        setattr(req, PREFIX, None)  # SGLang reads the row, and says how long it is
    else:
        _earlier(req).prefix_indices = slots.row_on_device(req, num_rows)


def held_by(req: Request) -> Handle | None:
    """Returns what the request keeps from eviction."""
    if HAS_CHECKPOINTS:
        lock = _later(req).lock
        return None if lock is None else lock.node
    return req.last_node


def hold(req: Request, handle: Handle) -> None:
    """Replaces what the request keeps from eviction. The caller locks and unlocks."""
    req.last_node = handle
    if HAS_CHECKPOINTS:
        receipt = base_prefix_cache.IncLockRefResult(delta=0)
        _later(req).lock = cast(Any, base_prefix_cache).TreeLock(
            handle, cast(Any, receipt).to_dec_params()
        )


def end_by_fault(req: Request, reason: str) -> None:
    """Ends a request after its next token with status 500 and `reason`."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT  # not while plugins are loaded

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    req.to_finish = FINISH_ABORT(reason, status, "InternalServerError")


def match_result(
    req: Request | None, slots: torch.Tensor, handle: Handle, num_moved: int
) -> MatchResult:
    """Returns a match for the scheduler.

    num_moved  tokens that `init_load_back` will find slots for
    """
    if not HAS_CHECKPOINTS:
        earlier = cast(Any, slots)  # of slots; of their number from 0.5.23 on
        return MatchResult(earlier, handle, handle, handle, host_hit_length=num_moved)
    if req is not None:
        setattr(req, PREFIX, slots)
    return MatchResult(len(slots), handle, handle, handle, host_hit_length=num_moved)


def load_back_result(req: Request, slots: torch.Tensor, handle: Handle) -> tuple[Any, Handle]:
    """Returns what `init_load_back` answers: `slots` follow behind those of the match."""
    if not HAS_CHECKPOINTS:
        return slots, handle
    setattr(req, PREFIX, torch.cat([getattr(req, PREFIX), slots]))
    return len(slots), handle


def batch_beside(forward_batch: Any, ids: torch.Tensor, positions: torch.Tensor) -> Any:
    """Returns a batch of these tokens for the model's body alone, beside the one that runs."""
    batch = copy.copy(forward_batch)
    batch.input_ids, batch.positions = ids, positions
    batch.forward_mode = ForwardMode.EXTEND  # the other one may decode too
    for name in _NUMS_REAL:  # of the other batch; None means all tokens
        if hasattr(batch, name):
            setattr(batch, name, None)
    return batch


def tp_group(runner: Any) -> Any:
    """Returns the group of ranks that share a model runner's heads."""
    return runner.tp_group if hasattr(runner, "tp_group") else _parallel().tp_group


def dp_rank(worker: Any) -> int | None:
    """Returns which of several engines behind one server a TpModelWorker is of; None where none."""
    return worker.ps.dp_rank if hasattr(worker, "ps") else _parallel().dp_rank


def _parallel() -> Any:
    from sglang.srt import runtime_context  # not there in 0.5.17

    return cast(Any, runtime_context).get_parallel()


def change_arguments(server_args: Any, source: str, **values: Any) -> None:
    """Changes a server's arguments while they are checked.

    In 0.5.23 the record stays what was given, and SGLang reads what was declared beside it.
    """
    if hasattr(server_args, "override"):
        server_args.override(source, **values)
        return
    from sglang.srt.arg_groups import overrides  # not there in 0.5.17

    cast(Any, overrides).declare_resolution(server_args, source, **values)


def rid_of(request: Any) -> str:
    """Returns the id of a request that waits; 0.5.23 names it by a handle."""
    return getattr(request, "rid", request)


def host_pool_size(device_pool: Any, num_tokens: int, token_bytes: int) -> dict[str, Any]:
    """Returns what SGLang's host pool is to be made with, for so many tokens of `device_pool`.

    token_bytes  bytes of one token's keys and values
    """
    if HAS_CHECKPOINTS:
        return {
            "buffer_info": device_pool._mha_buffer_info(),
            "host_size": 0,
            "host_token_capacity": num_tokens,
            "device_capacity_tokens": device_pool.size,
            "start_layer": device_pool.start_layer,
            "end_layer": device_pool.end_layer,
        }
    # In GB of 10^9 bytes, and one page is added to what fits.
    return {"device_pool": device_pool, "host_size": (num_tokens - 0.5) * token_bytes / 1e9}


def was_aborted(manager: Any, rid: str) -> bool:
    """Returns whether a request was aborted that is still being read.

    manager  SGLang's TokenizerManager
    """
    state = manager.rid_to_state.get(rid)
    return getattr(state, "abort_sent" if HAS_CHECKPOINTS else "abort_requested", False)


async def run_beside(manager: Any, obj: Any) -> dict[str, Any]:
    """Run one more request to its end, for one that is being read; its last output.

    manager  SGLang's TokenizerManager, whose lock on the weights the other request holds: a second
             lock could wait for ever behind somebody who waits to change them
    obj      GenerateReqInput of one prompt in ids

    A caller that gives up waiting aborts it.
    """
    obj.normalize_batch_and_arguments()
    lifecycles = manager._init_req_state(obj, None)
    state = manager.rid_to_state[obj.rid]
    out: dict[str, Any] = {}
    try:
        sent = manager._send_one_request(await manager._tokenize_one_request(obj))
        if inspect.isawaitable(sent):
            await sent
        async for each in manager._wait_one_response(obj, None):
            out = each
        return out
    except BaseException:
        if HAS_CHECKPOINTS:
            manager._release_req_states_on_failure({obj.rid: state})
        else:
            manager._discard_pending_req_states(obj, lifecycles)
        raise
