# SPDX-License-Identifier: Apache-2.0
"""Other users of a server, in a process of their own: how long were they held up, and when?

Four at once: one asks tiny plain questions, one tiny questions about facts, one reads a long
stream, and one asks what only the HTTP process answers. A gap is the time to an answer, or between
two chunks of the stream. Times are those of `time.monotonic`, which all processes of a machine
share.
"""

from __future__ import annotations

import multiprocessing
import queue
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

_PAUSE_S = 0.01
_TIMEOUT_S = 120.0
NUM_USERS = 4
_PLAIN = {
    "input_ids": [300, 301, 302, 303],
    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
}
_FACTS: dict[str, Any] = {
    "input_ids": [*range(300, 309), 400],
    "sampling_params": {
        "max_new_tokens": 1,
        "temperature": 0,
        "custom_params": {
            "depcache_version": 1,
            "depcache_system_len": 2,
            "depcache_segment_lens": [3, 4],
            "depcache_segment_parents": [-1, -1],
        },
    },
}
_STREAM = {
    "input_ids": [310, 311, 312],
    "sampling_params": {"max_new_tokens": 2000, "temperature": 0, "ignore_eos": True},
    "stream": True,
}


@dataclass(frozen=True)
class Gap:
    """One wait of one user, `[start_s, stop_s)`. An error counts as a wait until it came."""

    user: str
    start_s: float
    stop_s: float

    @property
    def ms(self) -> float:
        return (self.stop_s - self.start_s) * 1e3


class Probe:
    """The other users, for as long as a `with` block."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.gaps: list[Gap] = []
        self._queue: Any = context.Queue()
        self._stop: Any = context.Event()
        self._process = context.Process(target=_run, args=(url, self._queue, self._stop))

    def __enter__(self) -> Probe:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.read()  # a process whose queue is full does not end
        self._process.join(10)
        self._process.kill()

    def wait_for_users(self, start_s: float, timeout_s: float) -> bool:
        """Waits until each user has waited once since `start_s`; whether they all have in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if len({gap.user for gap in self.read() if gap.start_s > start_s}) == NUM_USERS:
                return True
            time.sleep(0.05)
        return False

    def read(self) -> list[Gap]:
        """All gaps so far, in the order in which they ended."""
        while True:
            try:
                self.gaps.append(self._queue.get_nowait())
            except queue.Empty:
                return self.gaps


def usual_ms(gaps: Iterable[Gap]) -> dict[str, float]:
    """Median of each user."""
    by_user: dict[str, list[float]] = {}
    for gap in gaps:
        by_user.setdefault(gap.user, []).append(gap.ms)
    return {user: statistics.median(times) for user, times in by_user.items()}


def hold_ups(
    gaps: Sequence[Gap], usual: dict[str, float], start_s: float, stop_s: float
) -> dict[str, float]:
    """How many ms longer than usual each user waited while `[start_s, stop_s)` went on."""
    longest = dict.fromkeys(usual, 0.0)
    for gap in gaps:
        if gap.user in usual and gap.start_s < stop_s and gap.stop_s > start_s:
            longest[gap.user] = max(longest[gap.user], gap.ms - usual[gap.user])
    return longest


def _run(url: str, out: Any, stop: Any) -> None:
    users = [
        threading.Thread(target=_ask, args=(url, out, stop, user, body))
        for user, body in (
            ("a plain question", _PLAIN),
            ("a question about facts", _FACTS),
            ("a look at the models", None),
        )
    ]
    users.append(threading.Thread(target=_read_stream, args=(url, out, stop)))
    for user in users:
        user.start()
    for user in users:
        user.join()


def _ask(url: str, out: Any, stop: Any, name: str, body: dict[str, Any] | None) -> None:
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        while not stop.is_set():
            start = time.monotonic()
            try:
                if body is None:
                    client.get("/v1/models")
                else:
                    client.post("/generate", json=body)
            except httpx.HTTPError:
                time.sleep(0.1)
            out.put(Gap(name, start, time.monotonic()))
            time.sleep(_PAUSE_S)


def _read_stream(url: str, out: Any, stop: Any) -> None:
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        while not stop.is_set():
            try:
                with client.stream("POST", "/generate", json=_STREAM) as response:
                    last = None  # the wait for the first chunk is a question's
                    for _ in response.iter_raw():
                        now = time.monotonic()
                        if last is not None:
                            out.put(Gap("a stream", last, now))
                        last = now
                        if stop.is_set():
                            return
            except httpx.HTTPError:
                time.sleep(0.1)
