# SPDX-License-Identifier: Apache-2.0
"""A real server that may be killed at any moment and started again, and what it holds at rest."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil

from depcache.errors import ServerError
from depcache.serving.launch import find_gpu, make_launch
from depcache.serving.process import ServerProcess, find_free_port

READY_S = 300.0
REST_S = 60.0
_POLL_S = 0.1

STRESS = {
    # SGLang counts its slots on every step and ends the server on a leak.
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    # After so many seconds SGLang looks whether a client that waits is still there.
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": "1",
    # A full pool alone retracts too, but how often depends on the machine.
    "SGLANG_TEST_RETRACT": "1",
    "SGLANG_TEST_RETRACT_INTERVAL": "50",  # steps
    # What was freed goes back to the system, so that growth is of what is in use. Else glibc keeps
    # what the largest request so far took: steps of eight megabytes, minutes apart.
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


@dataclass(frozen=True)
class Setup:
    """How a server is started.

    settings     of DepCache, by the names of `depcache.config`
    environment  more variables
    """

    model: str
    pool_tokens: int
    settings: Mapping[str, str]
    sglang_args: Sequence[str] = ()
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Usage:
    """What the processes of a server hold.

    rss_mb  of each by its name; pages that they share are counted in each
    """

    rss_mb: Mapping[str, float]
    num_fds: int
    num_threads: int

    @property
    def total_rss_mb(self) -> float:
        return sum(self.rss_mb.values())


class Endpoint(Protocol):
    """What clients of a soak ask: a server, or several behind a router.

    is_ending  what is cut off from here on is cut off by us
    rest_urls  of the servers themselves, which say what they hold
    """

    url: str
    is_ending: bool

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def log_tail(self) -> str: ...
    @property
    def log_file(self) -> Path: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def rest_urls(self) -> list[str]: ...


class Server:
    """One server after the other, with the same setup; their logs are kept, one file each."""

    def __init__(self, setup: Setup, log_folder: Path, name: str) -> None:
        self.setup = setup
        self.name = name
        self.url = ""
        self.is_ending = False
        """What is cut off from here on is cut off by us."""
        self.num_starts = 0
        self.start_s = 0.0
        self._log_folder = log_folder
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start one and wait until it answers. Raises ServerError."""
        port = find_free_port()
        args = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        args += ["--max-total-tokens", str(self.setup.pool_tokens), "--skip-server-warmup"]
        args += ["--nccl-port", str(find_free_port())]  # SGLang's own may be taken meanwhile
        launch = make_launch(
            [*args, *self.setup.sglang_args],
            model=self.setup.model,
            has_gpu=find_gpu(),
            settings=dict(self.setup.settings),
        )
        launch.env.update(self.setup.environment or {})
        self.url = f"http://127.0.0.1:{port}"
        self.num_starts += 1
        started = time.monotonic()
        self._process = ServerProcess(launch, self.url, self.log_file)
        self._process.start()
        try:
            self._process.wait_until_ready(READY_S)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started
        self.is_ending = False

    @property
    def log_file(self) -> Path:
        return self._log_folder / f"{self.name}-{self.num_starts}.log"

    @property
    def is_running(self) -> bool:
        """Whether the process that was started still is there."""
        if self._process is None:
            return False
        try:
            return psutil.Process(self._process.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def rest_urls(self) -> list[str]:
        """Where it says what it holds."""
        return [self.url]

    def stop(self) -> None:
        """End it, if it runs. Safe to call twice."""
        self.is_ending = True
        if self._process is not None:
            self._process.stop()
        self._process = None

    def kill(self) -> None:
        """SIGKILL to all of it, and nothing is left."""
        assert self._process is not None
        self.is_ending = True
        os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def terminate(self, patience_s: float) -> float:
        """SIGTERM to all of it, as a service manager does; seconds until it was gone.

        What is not gone after `patience_s` is killed.
        """
        assert self._process is not None
        self.is_ending = True
        started = time.monotonic()
        os.killpg(self._process.pid, signal.SIGTERM)
        while self.is_running and time.monotonic() < started + patience_s:
            time.sleep(_POLL_S)
        seconds = time.monotonic() - started
        self.stop()
        return seconds

    def log_tail(self) -> str:
        """The last lines of the log, and where the rest is."""
        return "" if self._process is None else self._process.log_tail()

    def usage(self) -> Usage | None:
        """What it holds now; None if it ended meanwhile."""
        if self._process is None:
            return None
        try:
            first = psutil.Process(self._process.pid)
            processes = [first, *first.children(recursive=True)]
            rss: Counter[str] = Counter()
            for process in processes:
                rss[_name_of(process)] += process.memory_info().rss
            return Usage(
                {name: num_bytes / 1e6 for name, num_bytes in rss.items()},
                sum(p.num_fds() for p in processes),
                sum(p.num_threads() for p in processes),
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _name_of(process: psutil.Process) -> str:
    """`scheduler`, `detokenizer`, or `http` for the one that was started."""
    title = " ".join(process.cmdline())
    for name in ("scheduler", "detokenizer", "resource_tracker"):
        if name in title:
            return name
    return "http"


def held_at_rest(status: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, int]:
    """Tokens and operations that nothing should hold when nothing runs; {} if nothing does.

    status, stats  the bodies of /depcache/status and /depcache/stats
    """
    cache = status["cache"]
    held = {
        "locked tokens": cache["locked_tokens"],
        "private tokens": cache["private_tokens"],
        "tokens neither free nor cached": cache["capacity_tokens"]
        - cache["free_tokens"]
        - cache["cached_tokens"],
        "waiting requests": stats["waiting_requests"],
    }
    if (host := cache["host"]) is not None:
        held["host tokens neither free nor cached"] = (
            host["capacity_tokens"] - host["free_tokens"] - host["cached_tokens"]
        )
    if (disk := cache["disk"]) is not None:
        held["requests that wait for the disk"] = disk["waiting_requests"]
        held["operations on the disk"] = disk["open_operations"]
    return {name: number for name, number in held.items() if number}


def num_leaked(held: Mapping[str, int]) -> int:
    """How many tokens are among what is held at rest."""
    return sum(abs(number) for name, number in held.items() if "tokens" in name)


async def wait_for_rest(http: httpx.AsyncClient, seconds: float = REST_S) -> dict[str, int]:
    """What is still held when nothing has run for a while; {} as soon as nothing is.

    Raises ServerError when the server does not say.
    """
    import asyncio

    deadline = time.monotonic() + seconds
    while True:
        try:
            status = (await http.get("/depcache/status")).json()
            stats = (await http.get("/depcache/stats")).json()
            held = held_at_rest(status, stats)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ServerError(f"the server does not say what it holds ({error!r})") from error
        if not held or time.monotonic() > deadline:
            return held
        await asyncio.sleep(_POLL_S)
