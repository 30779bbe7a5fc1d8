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
from depcache.client.reply import Reply, ReuseReport
from depcache.client.routing import HEADER
from depcache.errors import DepCacheError
from depcache.prompt.render import RenderedPrompt, render

CONCURRENCY = 4


@dataclass
class Outcome:
    """What became of the requests, in their order.

    texts    of the answers, None where there was none
    errors   why there was none
    reports  of the answers that had one
    """

    texts: list[str | None] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reports: list[ReuseReport] = field(default_factory=list)

    @property
    def hit(self) -> float | None:
        """Share of the context that was not computed, 0 to 1; None where nothing was answered."""
        return self.hit_behind(0)

    def hit_behind(self, system: int) -> float | None:
        """The same of what follows the first `system` tokens, which all requests have in common."""
        missed = sum(report.missed for report in self.reports)
        reused = sum(each.shared + each.shifted + each.loaded for each in self.reports)
        reused -= system * len(self.reports)
        return reused / (reused + missed) if reused + missed else None


def ask_all(
    url: str,
    requests: Sequence[RenderedPrompt],
    *,
    answer_tokens: int = 1,
    sends_keys: bool = True,
    picker: str | None = None,
    on_answer: Callable[[int], None] | None = None,
) -> Outcome:
    """Send them, CONCURRENCY at once.

    sends_keys  False leaves the routing key out
    picker      address of a picker that is asked for each
    on_answer   is told after each how many there were
    """
    outcome = Outcome()
    done, lock = [0], threading.Lock()
    hooks: Any = {} if sends_keys else {"request": [_without_key]}
    with (
        httpx.Client(event_hooks=hooks, timeout=120.0) as http,
        depcache.Client(url, http_client=http, warn_unread=False, picker=picker) as client,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):

        def ask(prompt: RenderedPrompt) -> Reply | DepCacheError:
            try:
                return client.chat(prompt.messages, max_tokens=answer_tokens, **prompt.extra_body)
            except DepCacheError as error:
                return error
            finally:
                with lock:
                    done[0] += 1
                    if on_answer is not None:
                        on_answer(done[0])

        for answer in pool.map(ask, requests):
            if isinstance(answer, DepCacheError):
                outcome.texts.append(None)
                outcome.errors.append(str(answer))
                continue
            outcome.texts.append(answer.text)
            if answer.depcache is not None:
                outcome.reports.append(answer.depcache)
    return outcome


def _without_key(request: httpx.Request) -> None:
    request.headers.pop(HEADER, None)


def num_system_tokens(url: str) -> int:
    """Tokens that every request of `make_requests` begins with, asked of a server.

    It is asked about two things that no graph of ours has, so that the second shares just these.
    """
    strangers = [render([(name, "is", name)], "What is it?") for name in ("Quux", "Zyzzy")]
    first, second = (ask_all(url, [prompt]).reports for prompt in strangers)
    if not first or not second:
        raise DepCacheError(f"{url} reports nothing of what it reused: is it DepCache's?")
    return second[0].shared


def num_answered(url: str) -> int:
    """Dependency requests that a server has answered since it started."""
    with depcache.Client(url) as client:
        return client.status()["cache"]["tokens"]["requests"]
