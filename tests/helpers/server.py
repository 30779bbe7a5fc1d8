# SPDX-License-Identifier: Apache-2.0
"""A real SGLang HTTP server on the CPU for tests, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from depcache.serving.launch import find_gpu, make_launch
from depcache.serving.process import find_free_port
from tests.helpers.ends import SLOWEST_S
from tests.helpers.forked import fork_server
from tests.helpers.prompts import TreePrompt

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
    arguments = ["--model-path", str(model), *_FLAGS, "--port", str(port)]
    arguments += ["--radix-cache-backend", "depcache", *flags]
    # SGLang looks for a port for its processes long before they listen on it, and others take it.
    arguments += ["--nccl-port", str(find_free_port())]
    variables = {
        **os.environ,
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
        "DEPCACHE_CPU_THREADS": "1",
        # Else a connection is closed after five idle seconds, perhaps while it is being used again.
        "SGLANG_TIMEOUT_KEEP_ALIVE": str(int(SLOWEST_S)),
        **(environment or {}),
    }
    log.write_bytes(b"")
    process = fork_server(arguments, variables, log)
    try:
        with _ready(port, lambda: process.exitcode, log) as client:
            yield client
    finally:
        _end(process.pid, process.join)


@contextmanager
def start_serve(
    model: Path | str, *flags: str, log: Path, by_command: bool = False
) -> Iterator[str]:
    """Run a server as `depcache serve MODEL` does; gives its address.

    flags, log  as of `start_server`
    by_command  run the command itself; else what it would run is forked from a process that has
                imported SGLang already, which saves half a minute
    """
    port = find_free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "16384"]
    arguments += ["--skip-server-warmup", "--log-level", "warning", *flags]
    log.write_bytes(b"")
    if by_command:
        command = [sys.executable, "-m", "depcache.cli.main", "serve", str(model), *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
        exit_code, wait = process.poll, process.wait
    else:
        given = [flag for flag in arguments if flag != "--stock"]
        launch = make_launch(given, model=str(model), stock="--stock" in flags, has_gpu=find_gpu())
        process = fork_server(launch.argv[3:], {**os.environ, **launch.env}, log)
        exit_code, wait = partial(getattr, process, "exitcode"), process.join
    try:
        with _ready(port, exit_code, log):
            yield f"http://127.0.0.1:{port}"
    finally:
        _end(process.pid, wait)


def generate(client: httpx.Client, prompt: TreePrompt, num_new: int = 4) -> dict[str, Any]:
    """The greedy answer to a prompt. Raises httpx.HTTPError where there is none."""
    sampling: dict[str, Any] = {"max_new_tokens": num_new, "temperature": 0, "ignore_eos": True}
    sampling["custom_params"] = prompt.params()
    reply = client.post("/generate", json={"input_ids": prompt.tokens, "sampling_params": sampling})
    reply.raise_for_status()
    return reply.json()


@contextmanager
def _ready(port: int, exit_code: Callable[[], int | None], log: Path) -> Iterator[httpx.Client]:
    """A client of the server on `port`, as soon as it answers."""
    deadline = time.monotonic() + SLOWEST_S
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SLOWEST_S) as client:
        while not _is_ready(client):
            if exit_code() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"the server did not start (exit {exit_code()}):\n{tail}")
            time.sleep(0.1)
        yield client


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _end(group: int | None, wait: Callable[[], object]) -> None:
    """Kill the server and all processes that it started.

    SIGTERM would end the scheduler as suddenly, and the rest five seconds later.
    """
    assert group is not None
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    wait()
