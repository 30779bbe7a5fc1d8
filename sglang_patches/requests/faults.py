# SPDX-License-Identifier: Apache-2.0
"""Faults of ours while the scheduler serves a request: they end that request and nothing else.

The scheduler calls the cache in the middle of its loop, where an exception ends the server. So
each of these calls has a guard in `tree_cache`, and the guard calls one method here. It answers
SGLang with what keeps the loop right, says in the log what happened, and ends the request with the
reason. Where the answer does not depend on what failed, the request goes on.
"""

from __future__ import annotations

import logging

import numpy as np

from depcache.cache import KVTree
from depcache.cache.node import slots_of
from depcache.errors import PromptError
from sglang_patches import compat
from sglang_patches.contract import Request
from sglang_patches.requests.dependency import DependencyRequests
from sglang_patches.requests.state import Handle, get_state
from sglang_patches.slots import Slots

logger = logging.getLogger("depcache")

REFUSED = "depcache_refused"  # attribute of a request whose rows must not be cached
BROKEN = "depcache_broken"  # attribute of a request whose bookkeeping is not to be trusted
OWN_ROWS = "depcache_own_rows"  # attribute of such a request: which rows it has to free


def is_refused(req: Request) -> bool:
    """Whether `req` only runs to its end: its rows are nobody's prompt."""
    return getattr(req, REFUSED, False)


def is_broken(req: Request) -> bool:
    """Whether a fault left `req` in a state that nobody may read."""
    return getattr(req, BROKEN, False)


class Faults:
    """Ends requests for one cache. `num_refused` counts them."""

    def __init__(self, tree: KVTree, slots: Slots, dependency: DependencyRequests) -> None:
        self.num_refused = 0
        self._tree = tree
        self._slots = slots
        self._dependency = dependency

    def refuse(self, req: Request, error: Exception) -> None:
        """End a request that could not be matched: it runs one token that is nobody's prompt.

        The HTTP process refuses bad requests first. This is for those that reach the scheduler in
        another way, and for faults of ours.
        """
        self.num_refused += 1
        self._dependency.let_go(req)
        setattr(req, REFUSED, True)
        if isinstance(error, PromptError):
            req.set_finish_with_abort(str(error) or type(error).__name__)
        else:
            reason = _reason(req, "match the request", error)
            req.set_finish_with_abort(reason)
            compat.end_by_fault(req, reason)
        req.full_untruncated_fill_ids = req.origin_input_ids + req.output_ids

    def end(self, req: Request, doing: str, error: Exception) -> None:
        """End a running request after its next token, with the reason; its rows stay its own."""
        if is_broken(req):
            return  # it ends already
        self.num_refused += 1
        setattr(req, REFUSED, True)
        setattr(req, BROKEN, True)
        compat.end_by_fault(req, _reason(req, doing, error))

    def move_nothing(self, req: Request, handle: Handle, error: Exception) -> Handle:
        """Serve a request without moved rows, after a fault in moving them; returns its handle.

        Its report says why it reuses less. If it cannot be planned again, it is ended.
        """
        reason = _reason(req, "move cached rows", error)
        state = get_state(req)
        if state is None:
            return handle
        try:
            self._dependency.plan_without_moves(req, state, reason)
        except Exception as again:
            self.end(req, "plan the request again", again)
        return state.handle

    def keep_rows(self, req: Request, num_rows: int) -> None:
        """Let SGLang go on behind the rows [0, num_rows) of a broken request."""
        state = get_state(req)
        is_own = self._own_rows(req, num_rows)
        setattr(req, OWN_ROWS, is_own)
        num_private = 0 if state is None else state.num_private
        compat.set_computed(req, self._slots, num_rows)
        compat.set_protected_len(req, int((~is_own).sum()) + num_private)

    def give_back(self, req: Request, num_rows: int) -> None:
        """Free what a request that ends holds, without reading its bookkeeping."""
        state = get_state(req)
        if state is not None:
            self._dependency.forget(state)
        self._slots.free(self._slots.row(req, num_rows)[self._own_rows(req, num_rows)])
        setattr(req, OWN_ROWS, None)
        held = compat.held_by(req)
        if held is not None:
            self._tree.unlock(held.nodes)
            compat.hold(req, Handle([]))

    def _own_rows(self, req: Request, num_rows: int) -> np.ndarray:
        """(num_rows,) bool: rows whose slot the request has to free.

        At its first call, soon after the fault, a slot is the request's own if it is neither the
        tree's nor free. That reads the whole tree, which only a fault may cost. Rows that come
        later are the request's own; the others stay what they were, whatever the tree evicts.
        """
        known = getattr(req, OWN_ROWS, None)
        if known is not None:
            later = np.ones(max(0, num_rows - len(known)), bool)
            return np.concatenate((known[:num_rows], later))
        row = self._slots.row(req, num_rows)
        cached = slots_of([node for node in self._tree.nodes() if node.slots is not None])
        others = np.concatenate((cached, self._slots.free_slots(), [0]))  # 0 is never given out
        is_own = ~np.isin(row, others)
        first = np.zeros(num_rows, bool)
        first[np.unique(row, return_index=True)[1]] = True
        return is_own & first


def _reason(req: Request, doing: str, error: Exception) -> str:
    """Returns what the client is told, and logs the error with its traceback."""
    logger.error("request %s: a fault of DepCache: could not %s", req.rid, doing, exc_info=error)
    return f"DepCache could not {doing} ({type(error).__name__}: {error}): please report this"


def note_fault(doing: str, error: Exception, rid: str | None = None) -> None:
    """Log a fault in bookkeeping, which costs speed and no answer."""
    who = "" if rid is None else f" of request {rid}"
    logger.error("a fault of DepCache%s: could not %s", who, doing, exc_info=error)
