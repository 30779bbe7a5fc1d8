# SPDX-License-Identifier: Apache-2.0
"""Threads that call a slow storage, so that the scheduler does not; a thread that hangs is left.

A job is either waiting, running, holding or over. While it holds, it copies between memory of
ours (which cannot hang) and may not be given up: whoever gives a job up may then reuse the
memory it was to read or to write.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_WAITING, _RUNNING, _HOLDING, _OVER = range(4)


class GivenUpError(Exception):
    """The job took too long and nobody waits for it any more."""


class Job:
    """One call. `work(job)` runs on a thread; its result, or what it raises, is the outcome.

    run_s   seconds it may run
    wait_s  seconds it may wait and run together
    tag     for the caller
    state, lane   belong to the lane that the job was submitted to
    """

    __slots__ = (
        "is_forced",
        "lane",
        "outcome",
        "run_s",
        "seconds_run",
        "started",
        "state",
        "submitted",
        "tag",
        "wait_s",
        "work",
    )

    def __init__(self, work: Callable[[Job], Any], run_s: float, wait_s: float, tag: Any) -> None:
        self.work = work
        self.run_s = run_s
        self.wait_s = wait_s
        self.tag = tag
        self.submitted = 0.0
        self.started: float | None = None
        self.seconds_run: float | None = None  # None when it never ran
        self.outcome: Any = None
        self.is_forced = False
        self.state = _WAITING
        self.lane: Lane | None = None

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Cannot be given up inside; raises GivenUpError if it was before."""
        self.settle()
        try:
            yield
        finally:
            with self._its_lane.lock:
                self.state = _RUNNING

    def settle(self) -> None:
        """Cannot be given up any more: its result counts. Raises GivenUpError if it was before."""
        with self._its_lane.lock:
            if self.state == _OVER:
                raise GivenUpError
            self.state = _HOLDING

    @property
    def _its_lane(self) -> Lane:
        assert self.lane is not None, "the job was never submitted"
        return self.lane


class Lane:
    """One queue, served in order by `num_threads` threads."""

    def __init__(
        self,
        name: str,
        num_threads: int,
        max_waiting: int,
        clock: Callable[[], float],
        max_stuck: int = 4,
    ) -> None:
        """max_stuck: threads that may hang before no more are started in their place."""
        self.lock = threading.Lock()
        self._name = name
        self._clock = clock
        self._max_waiting = max_waiting
        self._max_stuck = max_stuck
        self._wanted = num_threads
        self._changed = threading.Condition(self.lock)
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._over: deque[Job] = deque()
        self._num_threads = 0
        self._num_stuck = 0
        self._num_bounded = 0  # waiting jobs that the limit counts
        self._is_closed = False
        self._next_late = float("inf")  # no waiting job is late before this time

    @property
    def num_open(self) -> int:
        """Jobs waiting or running."""
        return len(self._waiting) + len(self._running)

    @property
    def num_stuck(self) -> int:
        """Threads that hang in a job that was given up."""
        return self._num_stuck

    def submit(self, job: Job, *, is_forced: bool = False) -> bool:
        """False when the queue is full (never when forced) or the lane is closed."""
        with self.lock:
            if self._is_closed or (not is_forced and self._num_bounded >= self._max_waiting):
                return False
            job.is_forced = is_forced
            self._num_bounded += not is_forced
            job.lane = self
            job.submitted = self._clock()
            self._next_late = min(self._next_late, job.submitted + job.wait_s)
            self._waiting.append(job)
            self._start_threads()
            self._changed.notify_all()
            return True

    def poll(self) -> list[Job]:
        """Jobs that are over since the last call; `outcome` is TimeoutError for those given up."""
        if not (self._waiting or self._running or self._over):
            return []
        with self.lock:
            self._give_up()
            over = list(self._over)
            self._over.clear()
            return over

    def wait(self, seconds: float) -> None:
        """Block until something may be over, at most so long."""
        with self.lock:
            if not self._over and (self._waiting or self._running):
                self._changed.wait(seconds)

    def close(self) -> None:
        """No more jobs; those waiting are still done."""
        with self.lock:
            self._is_closed = True
            self._changed.notify_all()

    def _give_up(self) -> None:
        now = self._clock()
        for job in [job for job in self._running if job.state == _RUNNING]:
            began = job.submitted if job.started is None else job.started
            if now - began > job.run_s or now - job.submitted > job.wait_s:
                self._running.discard(job)
                self._finish(job, TimeoutError(f"no answer within {job.run_s:g} s"))
                self._num_stuck += 1
                self._num_threads -= 1
        if now > self._next_late:
            late = [job for job in self._waiting if now - job.submitted > job.wait_s]
            for job in late:
                self._waiting.remove(job)
                self._num_bounded -= not job.is_forced
                self._finish(job, TimeoutError(f"not begun within {job.wait_s:g} s"))
            ends = (job.submitted + job.wait_s for job in self._waiting)
            self._next_late = min(ends, default=float("inf"))
        self._start_threads()

    def _finish(self, job: Job, outcome: Any) -> None:
        job.state = _OVER
        job.outcome = outcome
        if job.started is not None:
            job.seconds_run = self._clock() - job.started
        self._over.append(job)
        self._changed.notify_all()

    def _start_threads(self) -> None:
        while (
            self._waiting
            and self._num_threads < min(self._wanted, len(self._waiting) + len(self._running))
            and self._num_stuck < self._max_stuck
        ):
            self._num_threads += 1
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self.lock:
                while not self._waiting:
                    if self._is_closed:
                        self._num_threads -= 1
                        return
                    self._changed.wait()
                job = self._waiting.popleft()
                self._num_bounded -= not job.is_forced
                job.started = self._clock()
                job.state = _RUNNING
                self._running.add(job)
            try:
                outcome = job.work(job)
            except BaseException as error:
                outcome = error
            with self.lock:
                if job in self._running:
                    self._running.discard(job)
                    self._finish(job, outcome)
                    continue
                # It was given up while it hung, and another thread has its place.
                self._num_stuck -= 1
                return
