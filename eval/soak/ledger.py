# SPDX-License-Identifier: Apache-2.0
"""What happened in a soak: requests by kind, refusals by reason, faults with their requests."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_FAULTS_KEPT = 50
"""In the report; the file has all."""
_SHOWN = 2000
_REASON_WORDS = 7


@dataclass
class Ledger:
    """Everything that is counted. A fault is written to `file` at once, whatever comes after.

    faults   what may never happen, each with the request that met it
    stock    5xx answers that the same request gets without dependency data: no fault of ours
    """

    file: Path
    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    stock: list[dict[str, Any]] = field(default_factory=list)
    ttft_ms: list[tuple[float, float]] = field(default_factory=list)
    phase: str = ""
    _in_flight: dict[int, dict[str, Any]] = field(default_factory=dict)
    _number: int = 0

    def fault(self, kind: str, what: str, request: Mapping[str, Any] | None = None) -> None:
        """Note one, with what is needed to see it again."""
        found = {"kind": kind, "phase": self.phase, "what": what[:_SHOWN], "request": request}
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(found) + "\n")
        short = json.dumps(request)
        kept: Any = request if len(short) <= _SHOWN else short[:_SHOWN] + "..."
        self.faults.append(found | {"request": kept})

    def num_faults(self, kind: str) -> int:
        return sum(fault["kind"] == kind for fault in self.faults)

    @contextmanager
    def under_way(self, request: Mapping[str, Any]) -> Iterator[None]:
        """While a request is: it is a suspect when the server dies."""
        self._number += 1
        number = self._number
        self._in_flight[number] = {"sent_at": time.monotonic(), **request}
        try:
            yield
        finally:
            self._in_flight.pop(number, None)

    def suspects(self) -> list[dict[str, Any]]:
        """The requests that are under way, the one sent last first."""
        return sorted(self._in_flight.values(), key=lambda r: -r["sent_at"])

    def note_answer(self, kind: str, status: int, text: str) -> None:
        """Count an answer, and if it refuses, why."""
        self.requests[kind] += 1
        self.statuses[str(status)] += 1
        if 400 <= status < 500:
            self.refusals[reason_of(text)] += 1

    def p99_ttft_ms(self, start_s: float, stop_s: float) -> float | None:
        """The 99th percentile of the streams that began in this time; None without any."""
        times = sorted(ms for at, ms in self.ttft_ms if start_s <= at < stop_s)
        return round(times[int(0.99 * (len(times) - 1))], 1) if times else None


def reason_of(text: str) -> str:
    """The first words of a refusal, its values left out, so that like ones count as one."""
    try:
        body = json.loads(text)
        said = body.get("error", body) if isinstance(body, dict) else {}
        message = str(said.get("message", "")) if isinstance(said, dict) else str(said)
    except ValueError:
        message = text
    words = [w for w in message.replace("\n", " ").split() if w.isascii() and w.isalpha()]
    return " ".join(words[:_REASON_WORDS]) or "(no words)"
