# SPDX-License-Identifier: Apache-2.0
"""Waiting requests whose KV is on its way from disk: how long they wait, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from depcache.cache import Node
from sglang_patches.tiers.host.residency import HostResidency

# This share of the host's slots may be kept for requests that wait.
SHARE = 1 / 2
# A request waits so long where nobody knows yet how long computing would take.
UNKNOWN_WAIT_S = 2.0


@dataclass(slots=True, eq=False)
class _Wait:
    """What one request waits for. `nodes` are pinned in host memory."""

    open: set[Hashable]
    nodes: list[Node]
    num_tokens: int
    seconds: float
    begun: float
    num_loaded: int = 0
    first_asked: float | None = None
    ended: float | None = None


class DiskWaits:
    """What requests wait for, by request id. Its `len` is the number of requests.

    fetch_s  seconds from a request's fetch until all was taken in, summed over requests
    wait_s   of these, seconds in which the request could have run and nothing else did: the others
             are hidden, because the server computed meanwhile
    """

    def __init__(self, host: HostResidency, clock: Callable[[], float]) -> None:
        self._host = host
        self._clock = clock
        self._waits: dict[str, _Wait] = {}
        self._num_tokens = 0
        self.fetch_s = self.wait_s = 0.0
        self._last_pass = 0.0

    def __len__(self) -> int:
        return len(self._waits)

    def clear(self) -> None:
        """Forget all; for a host tier that was cleared."""
        self._waits.clear()
        self._num_tokens = 0

    def has_room(self, num_tokens: int) -> bool:
        """Whether so many more tokens may be kept."""
        return self._num_tokens + num_tokens <= self._host.mover.num_tokens * SHARE

    def begin(
        self,
        rid: str,
        transfers: Iterable[Hashable],
        nodes: list[Node],
        num_tokens: int,
        seconds: float | None,
    ) -> None:
        """A request that waits for nothing yet waits for `transfers`.

        nodes    pinned in host memory for it, until it is released
        seconds  that computing `num_tokens` would take, None: unknown
        """
        wait_s, now = seconds or UNKNOWN_WAIT_S, self._clock()
        self._waits[rid] = wait = _Wait(set(transfers), nodes, num_tokens, wait_s, now)
        if not wait.open:
            wait.ended = now
        self._num_tokens += num_tokens

    def note_end(self, transfer: Hashable, kept: list[Node]) -> None:
        """A transfer has ended; it brought `kept` to host memory."""
        for wait in self._waits.values():
            if transfer in wait.open:
                wait.open.discard(transfer)
                if not wait.open:
                    wait.ended = self._clock()
                wait.num_loaded += sum(node.num_tokens for node in kept)
                self._host.copies.pin(kept)
                wait.nodes += kept

    def is_open(self, rid: str) -> bool:
        """Whether something is still on its way for the request."""
        wait = self._waits.get(rid)
        return wait is not None and bool(wait.open)

    def is_ready(self, rid: str) -> bool:
        """Whether it should wait no longer: all has arrived, or computing is faster.

        Its time begins when this is asked first: before, it could not have run.
        """
        if not self.is_open(rid):
            return True
        wait, now = self._waits[rid], self._clock()
        if wait.first_asked is None:
            wait.first_asked = now
        return now - wait.first_asked > wait.seconds

    def note_pass(self, *, is_idle: bool) -> None:
        """Once in a pass of the scheduler, before transfers are concluded.

        is_idle  whether nothing has run since the pass before
        """
        now, before = self._clock(), self._last_pass
        self._last_pass = now
        if is_idle:
            for wait in self._waits.values():
                if wait.open and wait.first_asked is not None:
                    self.wait_s += now - max(before, wait.first_asked)

    def num_loaded(self, rid: str) -> int:
        """Tokens that have come for the request."""
        wait = self._waits.get(rid)
        return 0 if wait is None else wait.num_loaded

    def release(self, rid: str) -> None:
        """The request runs or is gone; what was kept for it may be evicted again."""
        wait = self._waits.pop(rid, None)
        if wait is not None:
            self._host.copies.unpin(wait.nodes)
            self._num_tokens -= wait.num_tokens
            end = self._clock() if wait.ended is None else wait.ended
            self.fetch_s += end - wait.begun
