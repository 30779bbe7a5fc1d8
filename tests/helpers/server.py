# SPDX-License-Identifier: Apache-2.0
"""A real SGLang HTTP server on the CPU for tests, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from depcache.demo.server import find_free_port
from tests.helpers.ends import SLOWEST_S

STOP_S = 120.0  # for its tiers to close; then it is killed

_FLAGS = [
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch"),
    *("--grammar-backend", "none"),
    *("--dtype", "float32"),
    *("--mem-fraction-static", "0.9"),
    *("--max-total-tokens", "8192"),
    *("--host", "127.0.0.1"),
    *("--log-level", "warning"),
    # SGLang ends a server whose scheduler makes no step for so long; its default is 300 seconds.
    *("--watchdog-timeout", str(SLOWEST_S)),
    "--disable-cuda-graph",
    "--enable-cache-report",
    "--skip-server-warmup",
]


@contextmanager
def start_server(
    model: Path, *flags: str, log: Path, environment: dict[str, str] | None = None
) -> Iterator[httpx.Client]:
    """Run a server with the `depcache` cache; gives a client of it.

    flags        more SGLang flags; of a flag given twice the last counts
    log          file that takes the server's output; its end is in the error if it does not start
    environment  variables for this server on top of the strict checks
    """
    port = find_free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += [*_FLAGS, "--port", str(port), "--radix-cache-backend", "depcache", *flags]
    # SGLang looks for a port for its processes long before they listen on it, and others take it.
    command += ["--nccl-port", str(find_free_port())]
    variables = {
        **os.environ,
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
        "DEPCACHE_CPU_THREADS": "1",
        # Else a connection is closed after five idle seconds, perhaps while it is being used again.
        "SGLANG_TIMEOUT_KEEP_ALIVE": str(int(SLOWEST_S)),
        **(environment or {}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdout=output, stderr=output, start_new_session=True
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SLOWEST_S) as client:
                _wait_until_ready(process, client, log)
                yield client
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + SLOWEST_S
    while True:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"the server did not start (exit {process.poll()}):\n{tail}")
        time.sleep(0.3)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the scheduler and detokenizer that it started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
