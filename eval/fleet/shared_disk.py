# SPDX-License-Identifier: Apache-2.0
"""Two servers on one disk folder: what the second computes of what the first was asked before it.

alone   the second server with a folder of its own: what it computes without the first
shared  the same on the first one's folder
killed  the first is killed: the bytes that the second has from then on
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import depcache
from depcache.errors import ServerError
from depcache.prompt.render import RenderedPrompt
from eval.fleet.drive import ask_all
from eval.soak.server import Server, Setup

DISK_GB = 1.0
# All that is computed is written at once, and all that is there is loaded: a tiny model computes
# faster than a disk reads, so that a server that measures both would load nothing.
SETTINGS = {"host_gb": "0.2", "write_policy": "write_through", "load_policy": "always"}
WAIT_S = 60.0
ANSWER_TOKENS = 12


def measure_shared_disk(
    setup: Setup, requests: Sequence[RenderedPrompt], folder: Path
) -> dict[str, Any]:
    """Start servers as in `setup`, two at a time, and ask each all of `requests`.

    Raises ServerError where one does not hear of the other in WAIT_S seconds.
    """

    def server(name: str, disk: str) -> Server:
        settings = {"disk_gb": f"{DISK_GB:g}", "disk_folder": str(folder / disk)}
        return Server(replace(setup, settings={**SETTINGS, **settings}), folder, name)

    with server("first", "shared") as first:
        told = ask_all(first.url, requests, answer_tokens=ANSWER_TOKENS)
        stored = _wait_for(first, lambda disk: not disk["waiting_tokens"])
        with server("alone", "its-own") as alone:
            without = ask_all(alone.url, requests, answer_tokens=ANSWER_TOKENS)
        with server("second", "shared") as second:
            _wait_for(second, lambda disk: disk["values"] == stored["values"])
            beside = ask_all(second.url, requests, answer_tokens=ANSWER_TOKENS)
            before = _wait_for(second, lambda disk: not disk["waiting_tokens"])
            first.kill()
            after = _wait_for(second, lambda disk: not disk["neighbours"])
    return {
        "requests": len(requests),
        "lost": len(told.errors) + len(without.errors) + len(beside.errors),
        "answers_equal": told.texts == without.texts == beside.texts,
        "computed": {
            name: None if outcome.hit is None else round(1 - outcome.hit, 4)
            for name, outcome in (("first", told), ("alone", without), ("shared", beside))
        },
        "loaded_tokens": sum(report.loaded for report in beside.reports),
        "disk_bytes": {
            "limit": int(DISK_GB * 1e9),
            "first": stored["used_bytes"],
            "second": before["used_bytes"],
            "second_after_kill": after["used_bytes"],
        },
    }


def _wait_for(server: Server, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + WAIT_S
    with depcache.Client(server.url) as client:
        while not what(disk := client.status()["cache"]["disk"]):
            if time.monotonic() > end:
                raise ServerError(f"{server.name} did not come to it in {WAIT_S:g} s: {disk}")
            time.sleep(0.1)
    return disk
