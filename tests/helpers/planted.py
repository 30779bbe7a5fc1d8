# SPDX-License-Identifier: Apache-2.0
"""Plants a fault in each call that the scheduler makes of ours, when it is imported.

A request asks for its fault by its id: `fault:PLACE:before` raises in place of the call, and
`fault:PLACE:after` when the call has done its work. Everything else runs as ever. The place
`settle` is the match of a request that settles rows for the one of that id.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from depcache.plan import Lookahead
from sglang_patches.attention.deviation import DeviationKeeper
from sglang_patches.observe.metrics import NullMetrics
from sglang_patches.requests import waiting_queue
from sglang_patches.requests.dependency import DependencyRequests
from sglang_patches.requests.plain import PlainRequests
from sglang_patches.requests.state import RequestState
from tests.helpers.prompts import BODILESS_TOKEN, UNLUCKY_TOKEN

PREFIX = "fault"


class PlantedError(RuntimeError):
    """What is raised: an error that nobody expects."""


_doomed: dict[int, tuple[Any, str]] = {}
"""State of a request, by its id, and the request's rid; the state is kept so that the id is."""


def _plant(owner: Any, name: str, place: str, rid_in: Callable[..., str]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def planted(*args: Any, **keywords: Any) -> Any:
        rid = rid_in(*args)
        if rid.startswith(f"{PREFIX}:{place}:before"):
            raise PlantedError(f"before {place}")
        result = original(*args, **keywords)
        if rid.startswith(f"{PREFIX}:{place}:after"):
            raise PlantedError(f"after {place}")
        return result

    setattr(owner, name, planted)


def _of_request(_: Any, req: Any, *__: Any) -> str:
    return req.rid


def _of_settling(_: Any, req: Any, *__: Any) -> str:
    return req.rid if "/settle" in req.rid else ""


def _of_state(state: Any, *_: Any) -> str:
    return _doomed.get(id(state), (None, ""))[1]


def _note_states() -> None:
    original = DependencyRequests.match

    def match(self: Any, req: Any, state: Any) -> Any:
        if req.rid.startswith(PREFIX):
            _doomed[id(state)] = state, req.rid
        return original(self, req, state)

    DependencyRequests.match = match


_plant(DependencyRequests, "match", "match", _of_request)
_plant(DependencyRequests, "match", "settle", _of_settling)
_plant(DependencyRequests, "load_back", "move", _of_request)
_plant(DependencyRequests, "cache_unfinished", "cache", _of_request)
_plant(DependencyRequests, "cache_finished", "finish", _of_request)
_plant(PlainRequests, "match", "match", _of_request)
_plant(PlainRequests, "cache_unfinished", "cache", _of_request)
_plant(PlainRequests, "cache_finished", "finish", _of_request)
_plant(RequestState, "row_positions", "place", _of_state)
_plant(waiting_queue, "prompt_of", "queue", lambda req, *_: req.rid)
_note_states()

_enter = Lookahead.enter


def _enter_or_fail(self: Any, name: Any, namespace: Any, table: Any) -> None:
    # A prompt that begins so is met by a fault that does not stay with its request.
    if len(table.tokens) and int(table.tokens[0]) == UNLUCKY_TOKEN:
        raise PlantedError("look-ahead")
    _enter(self, name, namespace, table)


Lookahead.enter = _enter_or_fail

_compute_keys = DeviationKeeper._compute_keys


def _compute_or_fail(self: Any, tokens: Any, forward_batch: Any) -> Any:
    if int(tokens[0]) == BODILESS_TOKEN:
        raise PlantedError("the body of the model")
    return _compute_keys(self, tokens, forward_batch)


DeviationKeeper._compute_keys = _compute_or_fail


def _note_nothing(self: Any, *_: Any) -> None:
    raise PlantedError("counting")


NullMetrics.note_request = _note_nothing
