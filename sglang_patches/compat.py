# SPDX-License-Identifier: Apache-2.0
"""What other SGLang releases name or shape in another way; never behaviour of ours.

A port begins here: each function says what 0.5.23 has in its place. What it adds beyond names
stands in the docs on porting. `sglang_patches.contract` has the fields that all releases share.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchResult

from sglang_patches.contract import Request

if TYPE_CHECKING:
    from sglang_patches.requests.state import Handle

ABORT_FUNCTIONS = ("abort_request", "_abort_on_waiting_timeout", "_abort_on_queued_limit")
"""Methods of the scheduler that drop requests. 0.5.23 has no `_abort_on_waiting_timeout`."""


def row_index(req: Request) -> int:
    """Returns the request's row in `req_to_token`; `req.kv.req_pool_idx` in 0.5.23."""
    assert req.req_pool_idx is not None
    return req.req_pool_idx


def has_row(req: Request) -> bool:
    """Whether the request was admitted and has a row."""
    return req.req_pool_idx is not None


def tenant_of(req: Request) -> str | None:
    """Returns the tenant and, behind it, the adapter, as SGLang joins them; None without either.

    `hooks/tokenizer_manager.py` seals salt and extra key into one before. 0.5.23 keeps the salt in
    a field of its own, `req.cache_salt`, which belongs in here.
    """
    return req.extra_key


def protected_len(req: Request) -> int:
    """Returns how many rows, from the first, are not the request's to free; in `req.kv` later."""
    return req.cache_protected_len


def set_protected_len(req: Request, num_rows: int) -> None:
    """Says how many rows are not the request's to free."""
    req.cache_protected_len = num_rows


def set_prefix(req: Request, slots: torch.Tensor) -> None:
    """Says which rows need not be computed, by their slots; 0.5.23 wants `req.prefix_len` only."""
    req.prefix_indices = slots


def held_by(req: Request) -> Handle | None:
    """Returns what the request keeps from eviction; `req.lock.node` in 0.5.23."""
    return req.last_node


def hold(req: Request, handle: Handle) -> None:
    """Replaces what the request keeps from eviction. The caller locks and unlocks."""
    req.last_node = handle


def end_by_fault(req: Request, reason: str) -> None:
    """Ends a request after its next token with status 500 and `reason`."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT  # not while plugins are loaded

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    req.to_finish = FINISH_ABORT(reason, status, "InternalServerError")


def match_result(slots: torch.Tensor, handle: Handle, num_moved: int) -> MatchResult:
    """Returns a match for the scheduler; 0.5.23 wants the length of `slots` in their place.

    num_moved  tokens that `init_load_back` will find slots for
    """
    return MatchResult(slots, handle, handle, handle, host_hit_length=num_moved)


async def run_beside(manager: Any, obj: Any) -> dict[str, Any]:
    """Run one more request to its end, for one that is being read; its last output.

    manager  SGLang's TokenizerManager, whose lock on the weights the other request holds: a second
             lock could wait for ever behind somebody who waits to change them
    obj      GenerateReqInput of one prompt in ids

    A caller that gives up waiting aborts it.
    """
    obj.normalize_batch_and_arguments()
    lifecycles = manager._init_req_state(obj, None)
    out: dict[str, Any] = {}
    try:
        manager._send_one_request(await manager._tokenize_one_request(obj))
        async for each in manager._wait_one_response(obj, None):
            out = each
        return out
    except BaseException:
        manager._discard_pending_req_states(obj, lifecycles)
        raise
