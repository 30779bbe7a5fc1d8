# SPDX-License-Identifier: Apache-2.0
"""SMG, a router of the SGLang project, and our picker, for as long as a `with` block."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from depcache.errors import ConfigError, ServerError
from depcache.serving.launch import Launch
from depcache.serving.process import ServerProcess, find_free_port

READY_S = 60.0


@contextmanager
def route(smg: Path, policy: str, servers: Sequence[str], log_file: Path) -> Iterator[str]:
    """Start it with a policy and wait until it answers; its URL.

    smg      the command, of an environment that has the package `smg`
    servers  their URLs

    Raises ConfigError where there is no such command, ServerError where it does not start.
    """
    port = find_free_port()
    argv = [str(smg), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    argv += ["--worker-urls", *servers, "--prometheus-port", str(find_free_port())]
    argv += ["--disable-tokenizer-autoload", "--log-level", "info"]
    # With it, SMG 1.13 answers 503 where one server is dead and the other has a queue of eight.
    argv += ["--disable-worker-overload-protection"]
    # One that was killed is left out soon. One that is only busy answers late, and must stay.
    argv += ["--health-check-interval-secs", "2", "--health-failure-threshold", "3"]
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(Launch(argv, {}), url, log_file) as process:
        process.wait_until_ready(READY_S)
        _wait_for_servers(url, len(servers), process)
        yield url


@contextmanager
def pick(servers: Sequence[str], log_file: Path) -> Iterator[str]:
    """Start `depcache picker` and wait until it hears all servers; its URL.

    Raises ServerError where it does not start.
    """
    port = find_free_port()
    argv = [sys.executable, "-m", "depcache.cli.main", "picker", *servers, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(Launch(argv, {}), url, log_file) as process:
        process.wait_until_ready(READY_S)
        deadline = time.monotonic() + READY_S
        while not all(each["alive"] for each in httpx.get(f"{url}/servers").json()):
            if time.monotonic() > deadline:
                raise ServerError(f"the picker does not hear all servers:\n{process.log_tail()}")
            time.sleep(0.1)
        yield url


def _wait_for_servers(url: str, number: int, process: ServerProcess) -> None:
    """The router answers before it knows its servers."""
    deadline = time.monotonic() + READY_S
    while True:
        known = httpx.get(f"{url}/workers").json().get("workers") or []
        if sum(bool(each.get("is_healthy")) for each in known) == number:
            return
        if time.monotonic() > deadline:
            raise ServerError(
                f"the router knows {len(known)} healthy servers of {number} after {READY_S:.0f} s:"
                f"\n{process.log_tail()}"
            )
        time.sleep(0.1)


def smg_version(smg: Path) -> str:
    """The version of the package. Raises ConfigError where there is no such command."""
    python = smg.parent / "python"
    command = [python, "-c", "import importlib.metadata as m; print(m.version('smg'))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise ConfigError(
            f"{smg} is no command of SMG: install the package smg into an environment of its own, "
            "and name its bin/smg with --smg"
        ) from None
    return done.stdout.strip()
