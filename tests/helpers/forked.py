# SPDX-License-Identifier: Apache-2.0
"""Processes of an engine or a server, forked from one that has imported everything already.

SGLang spawns them, and each spends sixteen seconds of processor time on imports: more than all
that a test does with the engine. Environment and parent are those a spawned process would see.
Servers that tests start by a command of ours are spawned as ever.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import psutil

from tests.helpers.ends import SLOWEST_S

_IMPORTED = [
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang.srt.entrypoints.http_server",
]


PREPARE = "DEPCACHE_TESTS_PREPARE"
"""Variable with a module that the forked processes of an engine import before they begin."""

_made: list[ForkServerProcess] = []
_log: str | None = None
"""In a server: the file that its processes print to as well."""


class _Process(ForkServerProcess):
    """Takes the environment and the group of its making, and signals to its maker."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.environment = dict(os.environ)
        self._maker, self._group, self._log = os.getpid(), os.getpgrp(), _log

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        _read_environment()
        os.setpgid(0, self._group)
        if self._log is not None:
            _print_to(self._log)
        psutil.Process.parent = lambda _: psutil.Process(self._maker)  # pyright: ignore
        if PREPARE in os.environ:
            importlib.import_module(os.environ[PREPARE])
        super().run()


def _read_environment() -> None:
    """Set anew what SGLang's scheduler read from the environment when it was imported."""
    from sglang.srt.environ import envs
    from sglang.srt.managers import scheduler

    for name in ("RETRACT", "RETRACT_INTERVAL", "RETRACT_NO_PREFILL_BS"):
        setattr(scheduler, f"TEST_{name}", getattr(envs, f"SGLANG_TEST_{name}").get())


class _EngineProcess(_Process):
    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        _made.append(self)


class _Multiprocessing:
    """The module, as far as SGLang's engine uses it."""

    Process = _EngineProcess

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


def end_processes(*_: Any, **__: Any) -> None:
    """Kill the engine's processes and theirs, but not the one they were forked from."""
    from sglang.srt.utils import kill_process_tree

    while _made:
        process = _made.pop()
        if process.pid is not None:
            # A rank whose neighbour was killed ends by itself, and may be gone by now.
            with suppress(psutil.NoSuchProcess):
                kill_process_tree(process.pid, wait_timeout=int(SLOWEST_S))
            process.join()


@contextmanager
def forked_processes() -> Iterator[None]:
    """Engines that are made in the block fork their processes."""
    from sglang.srt.entrypoints import engine

    multiprocessing.set_forkserver_preload(_IMPORTED)
    with patch.multiple(engine, mp=_Multiprocessing(), kill_process_tree=end_processes):
        yield


def fork_server(arguments: list[str], environment: Mapping[str, str], log: Path) -> _Process:
    """Start what `python -m sglang.launch_server` would be, in a process group of its own.

    log  takes all that it and its processes print
    """
    multiprocessing.set_forkserver_preload(_IMPORTED)
    process = _Process(target=_serve, args=(arguments, str(log)))
    process.environment = dict(environment)
    process.start()
    return process


def _print_to(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)


def _serve(arguments: list[str], log: str) -> None:
    global _log
    os.setpgid(0, 0)
    _print_to(log)
    _log = log
    sys.argv = ["launch_server", *arguments]
    # The one that this process came from forks its processes too; Python would start another.
    forkserver._forkserver.ensure_running = lambda: None  # pyright: ignore
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    with forked_processes():
        run_server(prepare_server_args(arguments))


class ForkingSubprocess:
    """The module `subprocess`, as far as a `ServerProcess` uses it: SGLang's servers are forked."""

    DEVNULL, STDOUT = subprocess.DEVNULL, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired

    class Popen:
        """A process that was forked, or that the command started."""

        def __init__(
            self, argv: list[str], *, env: Mapping[str, str], stdout: IO[bytes], **options: Any
        ) -> None:
            self._forked = self._spawned = None
            if argv[1:3] == ["-m", "sglang.launch_server"]:
                self._forked = fork_server(argv[3:], env, Path(stdout.name))
            else:
                self._spawned = subprocess.Popen(argv, env=env, stdout=stdout, **options)

        @property
        def pid(self) -> int:
            process = self._forked or self._spawned
            assert process is not None and process.pid is not None
            return process.pid

        def poll(self) -> int | None:
            if self._spawned is not None:
                return self._spawned.poll()
            assert self._forked is not None
            return self._forked.exitcode

        def wait(self, timeout: float | None = None) -> int | None:
            if self._spawned is not None:
                return self._spawned.wait(timeout)
            assert self._forked is not None
            self._forked.join(timeout)
            if self._forked.exitcode is None:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
            return self._forked.exitcode
