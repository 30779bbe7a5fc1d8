# SPDX-License-Identifier: Apache-2.0
"""The phases of one run: the same prompts, asked with their KV in each of the tiers.

    first server, its folder on disk empty
        cold     never seen           } in turns: each prompt cold, then at once again
        device   in the pool          }
        all is written to disk, everything else is forgotten
        host     fetched into memory  } in turns, the cold one as a new version of the prompt
        cold     never seen           }
    second server, on the folder that the first one left
        disk     nothing but on disk  } in turns, likewise
        cold     never seen           }

A cold prompt is measured beside every warm one, so that what changes with time is in both.
Other prompts warm every stretch up. Whether a phase did what its name says is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from depcache.prompt.recompute import Recompute
from eval.tiers.prompts import TierPrompt

COLD, DEVICE, HOST, DISK = "cold", "device", "host", "disk"
WARM = (DEVICE, HOST, DISK)
# Versions of a prompt: the kept one, and a fresh one for each stretch.
KEPT, BESIDE_HOST, BESIDE_DISK = 1, 2, 3
# What a chat template puts before the number of the version is in the pool from the first
# request on, and so are digits that two numbers begin with.
COMMON_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Answered:
    """What one request was told. Tokens of its prompt; `cached_tokens` as `usage` counts them."""

    ttft_ms: float
    prompt_tokens: int
    context_tokens: int
    shared: int
    loaded: int
    missed: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured request. `stretch` is the warm phase that it was measured in turns with."""

    phase: str
    stretch: str
    prompt: TierPrompt
    answered: Answered

    @property
    def is_as_named(self) -> bool:
        """Whether the KV came from where the phase says, all of it."""
        found = self.answered
        if self.phase == COLD:
            return found.shared + found.loaded <= COMMON_TOKENS
        if self.phase == DEVICE:
            return found.missed == found.loaded == 0
        return found.missed == 0 and found.shared <= COMMON_TOKENS


class TierServer(Protocol):
    """What is asked of a server that runs."""

    start_s: float

    def ask(
        self, prompt: TierPrompt, version: int, *, recompute: Recompute | None = None
    ) -> Answered:
        """One streamed request; see `TierPrompt.render`."""
        ...

    def prefetch(self, prompt: TierPrompt, version: int) -> dict[str, Any]:
        """Bring it from disk to host memory and wait until it is there: tokens, bytes and ms."""
        ...

    def persist(self) -> dict[str, Any]:
        """Write everything to disk and wait until it is there: tokens, bytes and seconds."""
        ...

    def forget(self) -> None:
        """Empty every tier but the disk."""
        ...

    def stats(self) -> dict[str, Any]:
        """The body of /depcache/stats."""
        ...


@dataclass(slots=True)
class Run:
    """Everything that was measured with one load policy."""

    samples: list[Measurement] = field(default_factory=list)
    start_s: dict[str, float] = field(default_factory=dict)
    persisted: dict[str, Any] = field(default_factory=dict)
    prefetches: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)


def num_steps(num_prompts: int, num_warm_ups: int) -> int:
    """Requests of one run, for a progress bar."""
    return 6 * (num_prompts + num_warm_ups)


def measure(
    start: Callable[[], AbstractContextManager[TierServer]],
    prompts: Sequence[TierPrompt],
    warm_ups: Sequence[TierPrompt],
    *,
    on_step: Callable[[str], None] = lambda text: None,
    between: Callable[[], None] = lambda: None,
) -> Run:
    """Two servers, one after the other, on one folder that is empty at first.

    on_step  called with a word on what is going on after each request
    between  called while no server runs
    """
    run = Run()

    def ask_pair(
        server: TierServer, stretch: str, prompt: TierPrompt, fresh: int, is_measured: bool
    ) -> None:
        first, second = (stretch, KEPT), (COLD, fresh)
        if stretch == DEVICE:
            first, second = second, first  # what is cold now is in the pool at once after
        for phase, version in (first, second):
            if phase == HOST:
                fetched = server.prefetch(prompt, version)
                if is_measured:
                    run.prefetches.append({"size": prompt.size, **fetched})
            answered = server.ask(prompt, version)
            if is_measured:
                run.samples.append(Measurement(phase, stretch, prompt, answered))
            on_step(phase if is_measured else "warm-up")

    def ask_all(server: TierServer, stretch: str, fresh: int) -> None:
        for prompt in warm_ups:
            ask_pair(server, stretch, prompt, fresh, is_measured=False)
        for prompt in prompts:
            ask_pair(server, stretch, prompt, fresh, is_measured=True)
        run.stats[stretch] = server.stats()

    with start() as server:
        run.start_s["empty"] = server.start_s
        ask_all(server, DEVICE, KEPT)
        run.persisted = server.persist()
        run.stats["persisted"] = server.stats()
        server.forget()
        ask_all(server, HOST, BESIDE_HOST)
    between()
    with start() as server:
        run.start_s["warm"] = server.start_s
        ask_all(server, DISK, BESIDE_DISK)
    return run
