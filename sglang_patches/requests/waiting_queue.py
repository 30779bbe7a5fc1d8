# SPDX-License-Identifier: Apache-2.0
"""SGLang's waiting queue as the cache sees it: what will be used soon, and in which order.

SGLang keeps a plain list and tells the cache nothing of it, so each scheduling pass compares
the list with what was known: newcomers are written on the nodes they will use (look-ahead),
those that left are taken off. With an order of our own the list is sorted as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress

from depcache.cache import KVTree
from depcache.errors import PromptError
from depcache.plan import Lookahead, Scheduler, SegmentTable
from sglang_patches.compat import has_row
from sglang_patches.contract import Request
from sglang_patches.requests.faults import note_fault
from sglang_patches.requests.plain import plain_tokens
from sglang_patches.requests.state import RequestState, get_state
from sglang_patches.requests.tenants import namespace_of

logger = logging.getLogger("depcache")

MakeState = Callable[[Request], RequestState | None]


def prompt_of(req: Request, make_state: MakeState) -> tuple[Hashable, SegmentTable] | None:
    """Namespace and segments of what a waiting request needs; None when it will not run.

    make_state  prepares a request that was never matched; None for a plain one
    """
    if req.to_finish is not None:
        return None
    try:
        state = get_state(req) or make_state(req)
    except PromptError:  # told to the client when it is matched
        return None
    if state is not None:
        return state.namespace, state.table
    return namespace_of(req), SegmentTable.of_plain_prompt(plain_tokens(req))


class WaitingQueue:
    """Follows the queue of one scheduler.

    make_state  as in `prompt_of`
    scheduler   sorts the queue; None leaves SGLang's order
    """

    def __init__(
        self,
        tree: KVTree,
        make_state: MakeState,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._make_state = make_state
        self._lookahead = Lookahead(tree) if tree.policy.looks_ahead else None
        self._scheduler = scheduler
        # The requests are kept, so that no other can have the same id meanwhile.
        self._waiting: dict[Hashable, Request] = {}
        self._started: dict[Hashable, Request] = {}
        self._alone: Request | None = None  # a request that was the only one in the last pass
        self._unread: dict[Hashable, Request] = {}  # those that a fault kept out

    def __len__(self) -> int:
        """Requests that are known to wait."""
        return len(self._waiting)

    def clear(self) -> None:
        """Forget everything; for a cache that was reset."""
        if self._lookahead is not None:
            self._lookahead.clear()
        for name in list(self._waiting):
            self._leave(name, is_running=False)
        for name in list(self._started):
            self._finish(name)

    def sync(self, waiting: list[Request]) -> None:
        """See `waiting`, SGLang's list; sorts it in place if there is a scheduler.

        O(queue) for the comparison, O(segments) for each request that came or went.
        """
        if self._lookahead is None and self._scheduler is None:
            return
        with self._surviving("follow the waiting queue"):
            self._sync(waiting)

    def _sync(self, waiting: list[Request]) -> None:
        self._forget_gone(waiting)
        if len(waiting) == 1 and not self._waiting and waiting[0] is not self._alone:
            # It runs at once, or is seen again: a server that is not busy pays nothing here.
            self._alone = waiting[0]
            return
        self._alone = None
        for req in waiting:
            if id(req) not in self._waiting and id(req) not in self._unread:
                self._enter(req)
        if self._scheduler is not None and len(waiting) > 1:
            place = {name: i for i, name in enumerate(self._scheduler.order())}
            # Those it does not know end at once, in an error: first, then they are gone.
            waiting.sort(key=lambda req: place.get(id(req), -1))
        if self._lookahead is not None:
            self._lookahead.set_order(map(id, waiting))

    def forget_gone(self, waiting: list[Request]) -> None:
        """Take off those that are not in `waiting` any more.

        For aborts: SGLang makes no pass over an empty queue, so `sync` might not come soon.
        """
        with self._surviving("forget who left the waiting queue"):
            self._forget_gone(waiting)

    def _forget_gone(self, waiting: list[Request]) -> None:
        names = {id(req) for req in waiting}
        for name in [name for name in self._waiting if name not in names]:
            self._leave(name, is_running=has_row(self._waiting[name]))
        if self._unread:
            self._unread = {name: req for name, req in self._unread.items() if name in names}

    def forget(self, rid: str) -> None:
        """Take off the request `rid`, which left the queue without running."""
        with self._surviving("forget who left the waiting queue"):
            names = [name for name, req in self._waiting.items() if req.rid == rid]
            for name in names:
                self._leave(name, is_running=has_row(self._waiting[name]))

    def finished(self, req: Request) -> None:
        """`req` adds no more of its prompt to the tree: all is cached, or it ended early."""
        name = id(req)
        with self._surviving("take a request off the waiting queue"):
            if name in self._waiting:  # it started and ended between two passes
                self._leave(name, is_running=True)
            self._finish(name)

    @contextmanager
    def _surviving(self, doing: str) -> Iterator[None]:
        """A fault in here costs look-ahead and order until the next start, and no request."""
        try:
            yield
        except Exception as error:
            note_fault(doing, error)
            logger.error("look-ahead and queue order are off until the server is started again")
            if self._lookahead is not None:
                with suppress(Exception):  # what it wrote on nodes; it only steers eviction
                    self._lookahead.clear()
            self._lookahead = self._scheduler = self._alone = None
            for known in (self._waiting, self._started, self._unread):
                known.clear()

    def _enter(self, req: Request) -> None:
        name = id(req)
        try:
            prompt = prompt_of(req, self._make_state)
        except Exception as error:  # it runs all the same, unless its matching fails too
            note_fault("read a waiting request", error, req.rid)
            self._unread[name] = req
            return
        if prompt is None:
            return
        namespace, table = prompt
        self._waiting[name] = req
        if self._lookahead is not None:
            self._lookahead.enter(name, namespace, table)
        if self._scheduler is not None:
            self._finish(name)
            self._scheduler.enter(name, namespace, table)

    def _leave(self, name: Hashable, is_running: bool) -> None:
        req = self._waiting.pop(name)
        if self._lookahead is not None:
            self._lookahead.leave(name, is_running=is_running)
        if self._scheduler is None:
            return
        if is_running:
            self._scheduler.start(name)
            self._started[name] = req
        else:
            self._scheduler.leave(name)

    def _finish(self, name: Hashable) -> None:
        if self._started.pop(name, None) is not None and self._scheduler is not None:
            self._scheduler.finish(name)
