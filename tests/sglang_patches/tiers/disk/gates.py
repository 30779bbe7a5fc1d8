# SPDX-License-Identifier: Apache-2.0
"""Work for a lane that goes on only when a test lets it."""

from __future__ import annotations

import threading
from typing import Any

from sglang_patches.tiers.disk.lane import Job
from tests.helpers.ends import SLOWEST_S


class Gate:
    """Work that begins, says so, and goes on when it is let; then it returns `result`."""

    def __init__(self, result: Any = "done") -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()
        self.result = result

    def __call__(self, job: Job) -> Any:
        self.begun.set()
        assert self.opened.wait(SLOWEST_S)
        return self.result

    def await_begin(self) -> None:
        assert self.begun.wait(SLOWEST_S)


class HoldingGate(Gate):
    """The same, and it holds while it waits; `ended` is set when its thread is through."""

    def __init__(self) -> None:
        super().__init__("held")
        self.ended = threading.Event()

    def __call__(self, job: Job) -> Any:
        with job.holding():
            return super().__call__(job)
