# SPDX-License-Identifier: Apache-2.0
"""Processes of an engine that are forked from one that has imported everything already.

SGLang spawns them, and each spends sixteen seconds of processor time on imports: more than all
that a test does with the engine. Environment and parent are those a spawned process would see.
Servers that tests start by their command are spawned as ever.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import Any
from unittest.mock import patch

import psutil

from tests.helpers.ends import SLOWEST_S

_IMPORTED = [
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
]


_made: list[ForkServerProcess] = []


class _Process(ForkServerProcess):
    """Takes the environment of its making, and signals to its maker."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._environment, self._maker = dict(os.environ), os.getpid()
        _made.append(self)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        psutil.Process.parent = lambda _: psutil.Process(self._maker)  # pyright: ignore
        super().run()


class _Multiprocessing:
    """The module, as far as SGLang's engine uses it."""

    Process = _Process

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


def end_processes(*_: Any, **__: Any) -> None:
    """Kill the engine's processes and theirs, but not the one they were forked from."""
    from sglang.srt.utils import kill_process_tree

    while _made:
        process = _made.pop()
        if process.pid is not None:
            kill_process_tree(process.pid, wait_timeout=int(SLOWEST_S))
            process.join()


@contextmanager
def forked_processes() -> Iterator[None]:
    """Engines that are made in the block fork their processes."""
    from sglang.srt.entrypoints import engine

    multiprocessing.set_forkserver_preload(_IMPORTED)
    with patch.multiple(engine, mp=_Multiprocessing(), kill_process_tree=end_processes):
        yield
