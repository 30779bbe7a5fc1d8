# SPDX-License-Identifier: Apache-2.0
"""The two servers side by side, and the processor time of each of their processes.

Both have one thread for the model, so that a second of their scheduler is a second of one core,
and sleep while nothing waits: SGLang's scheduler would else look for requests without pause, and
its processor time would say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from depcache.serving.process import ServerProcess, find_free_port
from eval.serve.systems import get_system, make_server

READY_S = 1800.0
FRONT, SCHEDULER, DETOKENIZER = "front", "scheduler", "detokenizer"
PROCESSES = (FRONT, SCHEDULER, DETOKENIZER)
_TITLE = re.compile(r"sglang::(scheduler|detokenizer)")


class HostServer:
    """One of them: where it answers, and what its processes have computed so far."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._processes = {FRONT: psutil.Process(pid)}
        for child in self._processes[FRONT].children(recursive=True):
            title = _TITLE.match(" ".join(child.cmdline()))
            if title:
                self._processes[title[1]] = child

    def cpu_ms(self) -> dict[str, float]:
        """Processor time of each process so far, of the threads that it has now.

        Of the system's calls too. Counted by the scheduler of Linux, in nanoseconds: what
        `/proc/PID/stat` says comes in steps of ten milliseconds.
        """
        spent: dict[str, float] = {}
        for name, process in self._processes.items():
            tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            spent[name] = sum(int(task.read_text().split()[0]) for task in tasks) / 1e6
        return spent


@contextmanager
def open_servers(
    names: tuple[str, ...], model: str, folder: Path, *, pool_tokens: int
) -> Iterator[Mapping[str, HostServer]]:
    """Servers of these systems of `eval.serve`, all at once, for as long as the block.

    folder  for their logs

    Raises ServerError when one does not start.
    """
    with ExitStack() as stack:
        opened: dict[str, HostServer] = {}
        for name in names:
            system = get_system(name)
            quiet = replace(
                system,
                settings={**system.settings, "cpu_threads": "1"},
                args=(*system.args, "--sleep-on-idle"),
            )
            port = find_free_port()
            launch = make_server(quiet, model, port, pool_tokens=pool_tokens, vllm_python=None)
            server = ServerProcess(launch, f"http://127.0.0.1:{port}", folder / f"{name}.log")
            process = stack.enter_context(server)
            process.wait_until_ready(READY_S)
            opened[name] = HostServer(process.url, process.pid)
        yield opened
