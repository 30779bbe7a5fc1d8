# SPDX-License-Identifier: Apache-2.0
"""The last prompts, in memory, while somebody watches and for nobody else.

A request costs an append while the page is open and a comparison with None while it is not. All
that is made of a prompt is made when the page asks, on a thread.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from depcache.cache.radix import to_tokens
from depcache.prompt.forest import Forest
from sglang_patches.http.prompt_table import describe_prompt
from sglang_patches.observe.prefix_estimate import MAX_TREE_TOKENS, PrefixEstimate, Totals
from sglang_patches.observe.traces import sources_of

KEPT_S = 90.0
"""The watch ends, and all is forgotten, so long after the last question: a browser asks for a page
in the background once a minute."""

MAX_PROMPTS = 20
MAX_KEPT_TOKENS = 262_144
"""Prompts that are shown, and their tokens together; the newest one is always shown."""

MAX_WAITING = 500
MAX_WAITING_TOKENS = 2_000_000
"""Prompts between two questions of the page, and their tokens; of more, only the number is told."""

MAX_LATENCY_S = 3600.0


@dataclass(frozen=True)
class Noted:
    """A request as it was answered; `began_s` and `at_s` by `perf_counter` and the wall clock."""

    report: dict[str, Any]
    trace: dict[str, Any]
    began_s: float | None
    at_s: float

    @property
    def num_tokens(self) -> int:
        return self.report["prompt_tokens"]

    @cached_property
    def tokens(self) -> np.ndarray:
        """(num_tokens,) int64 in pre-order."""
        return to_tokens(self.trace["tokens"]).astype(np.int64)

    @cached_property
    def forest(self) -> Forest:
        """The structure of the prompt."""
        lens, parents = (to_tokens(self.trace[name]) for name in ("lens", "parents"))
        system_len, joins = self.trace["system_len"], self.trace["joins"]
        return Forest.make(self.num_tokens, system_len, lens, parents, joins)


class Session:
    """One watch, from the first question of a page to the last.

    capacity_tokens  room of the server's KV pool
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.name = secrets.token_hex(8)  # tells a page that the server began anew
        self._waiting: list[Noted] = []
        self._num_waiting_tokens = self._num = self._num_skipped = 0
        self._shown: deque[dict[str, Any]] = deque()
        self._estimate = PrefixEstimate(capacity_tokens)
        self._lock = Lock()  # two pages may ask at once

    @property
    def num_held(self) -> int:
        """Prompts that are in memory."""
        return len(self._waiting) + len(self._shown)

    def note(self, noted: Noted) -> None:
        """Keep a request until the page asks. In the event loop, as `take`."""
        num_tokens = self._num_waiting_tokens + noted.num_tokens
        if len(self._waiting) >= MAX_WAITING or num_tokens > MAX_WAITING_TOKENS:
            self._num_skipped += 1
            return
        self._waiting.append(noted)
        self._num_waiting_tokens = num_tokens

    def take(self) -> list[Noted]:
        """What was noted since the last time."""
        taken, self._waiting, self._num_waiting_tokens = self._waiting, [], 0
        return taken

    def read(self, taken: list[Noted], after: int, tokenizer: Any) -> dict[str, Any]:
        """What the page is told. On a thread: it takes as long as the new prompts are long.

        after  number of the last prompt that the page has; it gets those behind it
        """
        with self._lock:
            for number, noted in enumerate(taken):
                own = self._compare(noted)
                if number >= len(taken) - MAX_PROMPTS:
                    self._show(noted, own, tokenizer)
            return {
                "watch": self.name,
                "number": self._num,
                "skipped": self._num_skipped,
                "max_prompts": MAX_PROMPTS,
                "compared": asdict(self._estimate.totals),
                "prompts": [prompt for prompt in self._shown if prompt["number"] > after],
            }

    def _compare(self, noted: Noted) -> Totals | None:
        report = noted.report
        reused = sum(report[name] for name in ("shared", "shifted", "loaded", "tail"))
        tenant = noted.trace["tenant"]
        own = self._estimate.add(noted.tokens, noted.forest, report["layout"], tenant, reused)
        self._num_skipped += own is None
        self._num += 1
        return own

    def _show(self, noted: Noted, own: Totals | None, tokenizer: Any) -> None:
        report, forest, sources = noted.report, noted.forest, sources_of(noted.trace)
        self._shown.append(
            {
                "number": self._num,
                "at_s": noted.at_s,
                "ttft_ms": latency_ms(noted.began_s, noted.trace["done_s"]),
                "compared": None if own is None else asdict(own),
                **report,
                "trees": forest.num_trees,
                "segments": forest.num_segments,
                **describe_prompt(
                    noted.tokens.tolist(), forest, report["layout"], sources, tokenizer
                ),
            }
        )
        while len(self._shown) > 1 and (
            len(self._shown) > MAX_PROMPTS
            or sum(prompt["prompt_tokens"] for prompt in self._shown) > MAX_KEPT_TOKENS
        ):
            self._shown.popleft()


class WatchedPrompts:
    """The watch of this process, if there is one. Used in the event loop only.

    now  a clock in seconds
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.session: Session | None = None

    def forget(self) -> None:
        """End the watch; nothing is left."""
        self.session = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def keep_on(self, capacity_tokens: int = MAX_TREE_TOKENS) -> Session:
        """Somebody watches: begin, or go on."""
        if self.session is None or self._now() >= self._until:
            self.forget()
            self.session = Session(capacity_tokens)
        self._until = self._now() + KEPT_S
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(KEPT_S, self.forget)
        return self.session

    def note(
        self, report: dict[str, Any], trace: dict[str, Any] | None, began_s: float | None
    ) -> None:
        """A request is being answered.

        report   as its reply has it
        trace    see `traces.make_trace`; None while nobody watches
        began_s  `perf_counter` when its prompt was about to be read
        """
        if trace is None or self.session is None or self._now() >= self._until:
            return
        self.session.note(Noted(dict(report), trace, began_s, time.time()))


def latency_ms(began_s: float | None, done_s: float) -> float | None:
    """Time to the first token; None where the two clocks are not of one machine."""
    if began_s is None or not 0 <= done_s - began_s < MAX_LATENCY_S:
        return None
    return 1000 * (done_s - began_s)


WATCHED = WatchedPrompts()
"""Those of this process."""
