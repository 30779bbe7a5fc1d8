# SPDX-License-Identifier: Apache-2.0
"""How soon a picker hears what a server holds, and what it has evicted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import depcache
from depcache.errors import ServerError
from depcache.picker import Listener
from depcache.prompt.render import RenderedPrompt
from eval.fleet.drive import ask_all
from eval.soak.server import Server, Setup

STILL_S = 1.5
"""So long after a request nothing may change any more; the bar is a second."""

_LOOK_S = 0.005
_WAIT_S = 30.0


def measure_heard(
    setup: Setup, requests: Sequence[RenderedPrompt], folder: Path, *, num_timed: int
) -> dict[str, Any]:
    """Fill a server with most of `requests`, then ask the last `num_timed` one by one.

    late_s   seconds from the end of a request until the picker knew all of what it changed, by
             request; 0 where it knew before
    evicted  tokens that left the device meanwhile
    gone     roots of which the picker heard that nothing is held any more

    Raises ServerError where the picker hears nothing.
    """
    late: list[float] = []
    gone = 0
    with Server(setup, folder, "heard") as server, depcache.Client(server.url) as client:
        listener = Listener(server.url)
        listener.start()
        try:
            ask_all(server.url, requests[:-num_timed], answer_tokens=1)
            end = time.monotonic() + _WAIT_S
            while not listener.roots:
                if time.monotonic() > end:
                    raise ServerError(f"{server.name} tells nothing: {listener.problem}")
                time.sleep(_LOOK_S)
            time.sleep(STILL_S)
            before = client.status()["cache"]["evicted_tokens"]
            for request in requests[-num_timed:]:
                held = dict(listener.roots)
                client.chat(request.messages, max_tokens=1, **request.extra_body)
                late.append(_until_still(listener))
                gone += len(held.keys() - listener.roots.keys())
            evicted = client.status()["cache"]["evicted_tokens"] - before
        finally:
            listener.close()
    return {
        "requests": len(late),
        "late_s": {
            "median": round(statistics.median(late), 3),
            "worst": round(max(late), 3),
        },
        "evicted": evicted,
        "gone": gone,
    }


def _until_still(listener: Listener) -> float:
    """Seconds until the last change in what the listener knows, looked at for STILL_S."""
    begun = time.monotonic()
    last, known = 0.0, dict(listener.roots)
    while (passed := time.monotonic() - begun) < STILL_S:
        if (now := dict(listener.roots)) != known:
            last, known = passed, now
        time.sleep(_LOOK_S)
    return last
