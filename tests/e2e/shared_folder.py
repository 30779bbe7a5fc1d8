# SPDX-License-Identifier: Apache-2.0
"""Servers on one disk folder: what several modules need to start and ask them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.server import start_server

DISK_BYTES = 4_000_000
"""Some 4,000 tokens of this model with their lists: less than one server's prompts below need."""


class Fleet:
    """Servers on one folder; leaving a server's stack kills all its processes."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model, self._folder = model, folder
        self._number = 0

    def start(self, stack: ExitStack, num_ranks: int = 1, **settings: str) -> httpx.Client:
        self._number += 1
        environment = {
            "DEPCACHE_HOST_GB": "0.004",
            "DEPCACHE_DISK_GB": str(DISK_BYTES / 1e9),
            "DEPCACHE_DISK_FOLDER": str(self._folder / "disk"),
            "DEPCACHE_WRITE_POLICY": "write_through",
            "DEPCACHE_LOAD_POLICY": "always",  # computing a tiny model is faster
            **settings,
        }
        log = self._folder / f"server-{self._number}.txt"
        flags = ("--max-total-tokens", "4096", "--tp-size", str(num_ranks))
        return stack.enter_context(
            start_server(self._model, *flags, log=log, environment=environment)
        )

    @property
    def num_bytes(self) -> int:
        """What all files in the disk folder take."""
        total = 0
        for path in (self._folder / "disk").rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
        return total


def disk_of(client: httpx.Client) -> dict[str, Any]:
    return client.get("/depcache/status").json()["cache"]["disk"]


def wait_for(client: httpx.Client, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + SLOWEST_S
    while not what(disk := disk_of(client)):
        assert time.monotonic() < deadline, disk
        time.sleep(0.05)
    return disk


def make_prompt(rng: random.Random) -> TreePrompt:
    return TreePrompt(random_tokens(rng, 6), random_forest(rng, 4), random_tokens(rng, 5))
