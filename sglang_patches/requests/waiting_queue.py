# SPDX-License-Identifier: Apache-2.0
"""SGLang's waiting queue as the cache sees it: what will be used soon, and in which order.

SGLang keeps a plain list and tells the cache nothing of it, so each scheduling pass compares
the list with what was known: newcomers are written on the nodes they will use (look-ahead),
those that left are taken off. With an order of our own the list is sorted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from depcache.cache import KVTree
from depcache.errors import PromptError
from depcache.plan import Lookahead, Scheduler, SegmentTable
from sglang_patches.compat import has_row
from sglang_patches.contract import Request
from sglang_patches.requests.plain import plain_tokens
from sglang_patches.requests.state import RequestState, get_state
from sglang_patches.requests.tenants import namespace_of

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
        self.forget_gone(waiting)
        if len(waiting) == 1 and not self._waiting and waiting[0] is not self._alone:
            # It runs at once, or is seen again: a server that is not busy pays nothing here.
            self._alone = waiting[0]
            return
        self._alone = None
        for req in waiting:
            if id(req) not in self._waiting:
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
        names = {id(req) for req in waiting}
        for name in [name for name in self._waiting if name not in names]:
            self._leave(name, is_running=has_row(self._waiting[name]))

    def finished(self, req: Request) -> None:
        """`req` adds no more of its prompt to the tree: all is cached, or it ended early."""
        name = id(req)
        if name in self._waiting:  # it started and ended between two passes
            self._leave(name, is_running=True)
        self._finish(name)

    def _enter(self, req: Request) -> None:
        prompt = prompt_of(req, self._make_state)
        if prompt is None:
            return
        namespace, table = prompt
        name = id(req)
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
