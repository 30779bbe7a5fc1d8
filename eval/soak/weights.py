# SPDX-License-Identifier: Apache-2.0
"""Which weights a server had when: an answer is right by those that it may have run with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Weights:
    """`spans` are [start, stop] and a name; while weights change, two of them overlap."""

    spans: list[tuple[float, float, str]]

    @classmethod
    def of(cls, name: str) -> Weights:
        """The same all the time."""
        return cls([(0.0, float("inf"), name)])

    @contextmanager
    def changing_to(self, name: str) -> Iterator[None]:
        """Around the call that changes them."""
        start, _, old = self.spans[-1]
        self.spans.append((time.monotonic(), float("inf"), name))
        yield
        self.spans[-2] = (start, time.monotonic(), old)

    def between(self, start_s: float, stop_s: float) -> list[str]:
        """Those that a request of this time may have run with."""
        names = [name for start, stop, name in self.spans if start <= stop_s and stop >= start_s]
        return list(dict.fromkeys(names))
