# SPDX-License-Identifier: Apache-2.0
"""Sends requests, several at once, and counts what was reused and who answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

import depcache
from depcache.client.reply import ReuseReport
from depcache.client.routing import HEADER
from depcache.errors import DepCacheError
from eval.fleet.requests import Request

CONCURRENCY = 4
FLUSH_S = 60.0


@dataclass
class Outcome:
    """What became of the requests, in their order.

    texts    of the answers, None where there was none
    reports  of the answers that had one
    """

    texts: list[str | None] = field(default_factory=list)
    reports: list[ReuseReport] = field(default_factory=list)

    @property
    def hit(self) -> float:
        """Share of the context that was not computed, 0 to 1."""
        missed = sum(report.missed for report in self.reports)
        reused = sum(each.shared + each.shifted + each.loaded for each in self.reports)
        return reused / (reused + missed)


def ask_all(
    url: str,
    requests: Sequence[Request],
    *,
    answer_tokens: int = 1,
    sends_keys: bool = True,
    on_answer: Callable[[int], None] | None = None,
) -> Outcome:
    """Send them, CONCURRENCY at once.

    sends_keys  False leaves the routing key out
    on_answer   is told after each how many there were
    """
    outcome = Outcome()
    done, lock = [0], threading.Lock()
    hooks: Any = {} if sends_keys else {"request": [_without_key]}
    with (
        httpx.Client(event_hooks=hooks, timeout=120.0) as http,
        depcache.Client(url, http_client=http, warn_unread=False) as client,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):

        def ask(request: Request) -> tuple[str | None, ReuseReport | None]:
            try:
                reply = client.chat(
                    request.prompt.messages, max_tokens=answer_tokens, **request.prompt.extra_body
                )
            except DepCacheError:
                return None, None
            finally:
                with lock:
                    done[0] += 1
                    if on_answer is not None:
                        on_answer(done[0])
            return reply.text, reply.depcache

        for text, report in pool.map(ask, requests):
            outcome.texts.append(text)
            if report is not None:
                outcome.reports.append(report)
    return outcome


def _without_key(request: httpx.Request) -> None:
    request.headers.pop(HEADER, None)


def flush(url: str) -> None:
    """Empty the cache of a server that has nothing to do."""
    httpx.post(f"{url}/flush_cache", params={"timeout": FLUSH_S}, timeout=FLUSH_S + 5)


def num_answered(url: str) -> int:
    """Dependency requests that a server has answered since it started."""
    with depcache.Client(url) as client:
        return client.status()["cache"]["tokens"]["requests"]
