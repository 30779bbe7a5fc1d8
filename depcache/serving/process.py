# SPDX-License-Identifier: Apache-2.0
"""A server that lives as long as a `with` block."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from depcache.client.client import Client
from depcache.errors import ServerError
from depcache.serving.launch import Launch

TAIL_LINES = 15
_STOP_S = 15.0
_PORTS = range(20_000, 32_768)  # below those that Linux gives to connections
_MAX_TRIES = 100
_CHOICE = random.SystemRandom()


class ServerProcess:
    """Starts a launch, waits until it answers, stops it and everything it started.

        with ServerProcess(launch, url, log_file) as server:
            server.wait_until_ready(timeout_s=180)

    launch    the command; its `--host` and `--port` must be those of `url`
    log_file  gets everything that it prints

    Raises ServerError, with the end of the log, when the server ends or is not ready in time.
    """

    def __init__(self, launch: Launch, url: str, log_file: Path) -> None:
        self.url = url
        self.log_file = log_file
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        with self.log_file.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self._launch.argv,
                    env={**os.environ, **self._launch.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A session of its own, so that its scheduler processes can be stopped
                    # with it, and Ctrl-C reaches the demo alone.
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"the server cannot be started ({error})") from error

    @property
    def pid(self) -> int:
        """The id of the process that was started; its children are in the same session."""
        assert self._process is not None
        return self._process.pid

    def wait_until_ready(self, timeout_s: float) -> float:
        """Wait until it has loaded its model; returns the seconds waited."""
        assert self._process is not None
        started = time.perf_counter()
        with Client(self.url, timeout_s=5.0) as client:
            while not client.is_ready():
                waited = time.perf_counter() - started
                code = self._process.poll()
                if code is not None:
                    raise ServerError(f"the server ended with code {code}:\n{self.log_tail()}")
                if waited > timeout_s:
                    raise ServerError(
                        f"the server was not ready after {timeout_s:.0f} s:\n{self.log_tail()}"
                    )
                time.sleep(0.25)
        return time.perf_counter() - started

    def log_tail(self) -> str:
        """The last lines of the log, and where the rest is."""
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join([*lines[-TAIL_LINES:], f"(the whole log: {self.log_file})"])

    def stop(self) -> None:
        """Ask it to end, then make it. Safe to call twice."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        # Its children may outlive it, and would keep the port and the memory.
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        try:
            # The session leader's id names the group, also after the leader is gone.
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass


def find_free_port() -> int:
    """Returns a port of 127.0.0.1 that nothing uses now, and that no connection will be given.

    A server listens only when its model is loaded. Until then any connection that goes out of
    this machine could take a port that the system chose, because connections get theirs from
    the same range. Who seeds `random`, as SGLang does in its own process, changes nothing: two
    such processes would choose the same ports and talk to each other's servers.
    """
    for port in _CHOICE.sample(_PORTS, _MAX_TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError(f"{_MAX_TRIES} ports of 127.0.0.1 were tried and all are in use: free some")
