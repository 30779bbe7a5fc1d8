# SPDX-License-Identifier: Apache-2.0
"""How far a precomputation is, and what became of it: counts that several threads add to."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_KEPT_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a run. Tokens are those of texts, without the system that they share."""

    num_wanted: int
    num_done: int
    num_failed: int
    num_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class PrecomputeReport:
    """What a run did. Of the items of its source that were wanted (`items` names them):

    num_wanted     in all; of those
    num_resumed    were done before, by the state
    num_unchanged  were done before too, though the source or the choice of paths is another now
    num_computed   were sent to the server
    failures       were left out, by reason: "unknown" to the source, with "no paths", "refused"
                   by the server, "failed" there; `problems` are sentences about the first of them

    and in tokens:

    num_missed     computed now
    num_cached     found in a tier of the server, and not computed
    num_bytes      KV of those that were computed; None where the server does not say
    num_persisted  the disk tier was asked to write; None where there is no such tier
    """

    items: str = "entities"
    num_wanted: int = 0
    num_resumed: int = 0
    num_unchanged: int = 0
    num_computed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    num_requests: int = 0
    num_missed: int = 0
    num_cached: int = 0
    num_bytes: int | None = None
    num_persisted: int | None = None
    seconds: float = 0.0

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    @property
    def num_done(self) -> int:
        return self.num_resumed + self.num_unchanged + self.num_computed

    def fail(self, name: str, reason: str, sentence: str) -> None:
        """Count an item that is left out."""
        self.failures[reason] += 1
        if len(self.problems) < MAX_KEPT_PROBLEMS:
            self.problems.append(f"{name}: {sentence}")

    def progress(self, started: float) -> Progress:
        """Now, for a run that began when `time.perf_counter()` was `started`."""
        return Progress(
            self.num_wanted,
            self.num_done,
            self.num_failed,
            self.num_missed + self.num_cached,
            time.perf_counter() - started,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            self.items: self.num_wanted,
            "resumed": self.num_resumed,
            "unchanged": self.num_unchanged,
            "computed": self.num_computed,
            "failed": self.num_failed,
            "failures": dict(self.failures),
            "problems": self.problems,
            "requests": self.num_requests,
            "tokens_computed": self.num_missed,
            "tokens_cached": self.num_cached,
            "bytes": self.num_bytes,
            "tokens_persisted": self.num_persisted,
            "seconds": round(self.seconds, 3),
            "tokens_per_s": round(self.num_missed / self.seconds, 1) if self.seconds else 0.0,
        }
