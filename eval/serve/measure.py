# SPDX-License-Identifier: Apache-2.0
"""Start the systems in turns and take each through the phases of a workload.

    stream       the first requests, from an empty cache, one at a time
    warm         the requests after them, one at a time
    load         the requests after these, by several users at once or by arrival times
    precomputed  those of `warm` again, after a flush, with the trees of their entities computed
                 ahead; DepCache and graphs only

A round takes every system once, and the next one in the opposite order, so that what changes
with time is in all of them. Requests about other facts warm every server up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import httpx
import psutil

from depcache.client.client import Client
from depcache.errors import ServerError
from depcache.precompute import GraphSource, Precomputer, PrecomputeSettings, Source, TableSource
from depcache.precompute.job import NUM_WORKERS
from depcache.serving.launch import Launch
from depcache.serving.process import ServerProcess, find_free_port
from eval.serve.drive import Call, drive
from eval.serve.records import Record, summarize
from eval.serve.systems import System, Writer, make_server
from eval.serve.workloads import Request, Workload, entities_of
from eval.servers import flush

READY_S = 1800.0
STREAM, WARM, LOAD, PRECOMPUTED = "stream", "warm", "load", "precomputed"
PHASES = (STREAM, WARM, LOAD, PRECOMPUTED)
_WARM_UP = Request(
    "Ready?",
    ("object 0",),
    tuple((f"object {i}", f"stands {i} steps before", f"object {i + 1}") for i in range(60)),
)
_NUM_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for all systems alike.

    counts       requests of `stream`, `warm` and `load`, in this order out of the workload
    max_tokens   of an answer; `load_tokens` those of the phase `load`
    concurrency  users of the phase `load`, unless there are `arrivals`
    ttft_limit_s of the goodput
    stops_early  let the model end its answer; where answers are looked at, not only timed
    server_args  flags that every server of SGLang's gets besides
    """

    model: str
    template: str
    pool_tokens: int
    counts: dict[str, int]
    rounds: int = 1
    max_tokens: int = 8
    load_tokens: int = 32
    concurrency: int = 8
    arrivals: tuple[float, ...] | None = None
    ttft_limit_s: float = 1.0
    stops_early: bool = False
    vllm_python: File | None = None
    server_args: tuple[str, ...] = ()
    log_folder: File = File(".")


@dataclass(slots=True)
class Measured:
    """One phase of one system in one round.

    memory_bytes  resident memory of the server and its children, at the end
    """

    system: System
    phase: str
    round: int
    records: list[Record]
    summary: dict[str, Any]
    memory_bytes: int


@dataclass(slots=True)
class Run:
    """All of one workload.

    requests     of each phase
    servers      their command lines
    facts        what they say of themselves
    precomputed  what computing ahead took
    loads        load averages of the machine before each server
    """

    workload: Workload
    requests: dict[str, Sequence[Request]]
    measured: list[Measured] = field(default_factory=list)
    servers: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    precomputed: list[dict[str, Any]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


def measure(
    workload: Workload,
    systems: Sequence[System],
    writer: Writer,
    options: Options,
    on_step: Callable[[str, int], None] = lambda text, steps: None,
) -> Run:
    """Take all systems through all rounds; `on_step` is told what begins and what was done."""
    run = Run(workload, split(workload.requests, options.counts))
    for number in range(options.rounds):
        order = list(systems) if number % 2 == 0 else list(reversed(systems))
        for system in order:
            on_step(f"round {number + 1}: starting {system.name}", 0)
            run.loads.append(os.getloadavg()[0])
            for measured in _measure_system(run, system, writer, options, number, on_step):
                run.measured.append(measured)
    return run


def split(requests: Sequence[Request], counts: dict[str, int]) -> dict[str, Sequence[Request]]:
    """The requests of each phase: the first of them, those behind, those behind these."""
    parts: dict[str, Sequence[Request]] = {}
    at = 0
    for phase in (STREAM, WARM, LOAD):
        parts[phase] = requests[at : at + counts[phase]]
        at += counts[phase]
    parts[PRECOMPUTED] = parts[WARM]
    return parts


def num_steps(systems: Sequence[System], options: Options) -> int:
    """Requests of all rounds."""
    asked = sum(options.counts.values())
    again = options.counts[WARM] * sum(system.engine == "depcache" for system in systems)
    return options.rounds * (asked * len(systems) + again)


def _measure_system(
    run: Run,
    system: System,
    writer: Writer,
    options: Options,
    number: int,
    on_step: Callable[[str, int], None],
) -> Iterator[Measured]:
    calls = {
        phase: [writer.write(system, request) for request in requests]
        for phase, requests in run.requests.items()
    }
    with open_system(system, writer, options) as (process, launch), Client(process.url) as client:
        url = process.url
        run.servers[system.name] = launch.to_shell()
        run.facts.setdefault(system.name, _facts_of(url))

        def ask(phase: str, calls: Sequence[Call], **how: Any) -> Measured:
            on_step(f"round {number + 1}: {system.name}, {phase}", 0)
            records, seconds = drive(
                url,
                calls,
                lambda i: Record(
                    rid=f"{system.name}-{phase}-{number}-{i}",
                    system=system.name,
                    workload=run.workload.spec.name,
                    phase=phase,
                    round=number,
                    query_idx=i,
                ),
                stops_early=options.stops_early,
                on_done=lambda: on_step("", 1),
                **how,
            )
            summary = summarize(records, seconds, ttft_limit_s=options.ttft_limit_s)
            memory = _resident_bytes(process.pid)
            return Measured(system, phase, number, records, summary, memory)

        for phase in (STREAM, WARM):
            if calls[phase]:
                yield ask(phase, calls[phase], max_tokens=options.max_tokens)
        if calls[LOAD]:
            yield ask(
                LOAD,
                calls[LOAD],
                max_tokens=options.load_tokens,
                concurrency=options.concurrency,
                arrivals=options.arrivals,
            )
        source = _source_of(run.workload, system, options)
        if system.engine == "depcache" and calls[WARM] and source is not None:
            on_step(f"round {number + 1}: {system.name}, precomputing", 0)
            flush(url)
            job = Precomputer(source, client)
            # Tables share what they refer to; two requests at once could both compute it.
            workers = 1 if run.workload.catalog is not None else NUM_WORKERS
            wanted = entities_of(run.requests[WARM])
            report = job.run(job.plan(wanted), num_workers=workers)
            run.precomputed.append(
                {
                    "system": system.name,
                    "round": number,
                    report.items: report.num_wanted,
                    "tokens": report.num_missed,
                    "seconds": round(report.seconds, 2),
                }
            )
            yield ask(PRECOMPUTED, calls[PRECOMPUTED], max_tokens=options.max_tokens)


def _source_of(workload: Workload, system: System, options: Options) -> Source | None:
    """Returns what can be computed ahead for a workload, if anything can."""
    if workload.catalog is not None:
        return TableSource(workload.catalog)
    if workload.store is None:
        return None
    settings = PrecomputeSettings(
        num_hops=workload.spec.num_hops,
        num_paths=workload.spec.num_paths,
        pruner="none",
        template=options.template,
        layout=system.layout,
    )
    return GraphSource(workload.store, settings)


@contextmanager
def open_system(
    system: System, writer: Writer, options: Options
) -> Iterator[tuple[ServerProcess, Launch]]:
    """Its server for as long as the block, warmed up by facts of no workload.

    Raises ServerError when it does not start or does not answer.
    """
    port = find_free_port()
    launch = make_server(
        system,
        options.model,
        port,
        pool_tokens=options.pool_tokens,
        vllm_python=options.vllm_python,
        server_args=options.server_args,
    )
    log_file = options.log_folder / f"{system.name}.log"
    with ServerProcess(launch, f"http://127.0.0.1:{port}", log_file) as process:
        process.wait_until_ready(READY_S)
        _warm_up(process.url, writer.write(system, _WARM_UP), options)
        yield process, launch


def _warm_up(url: str, call: Call, options: Options) -> None:
    def note(i: int) -> Record:
        return Record(f"warm-up-{i}", "", "", "warm-up", 0, i)

    records, _ = drive(url, [call] * _NUM_WARM_UPS, note, max_tokens=options.max_tokens)
    broken = [record.error for record in records if record.error]
    if broken:
        raise ServerError(f"the first request to {url} failed: {broken[0]}")


def _facts_of(url: str) -> dict[str, Any]:
    """What a server says of itself, SGLang in one way and vLLM in another; {} if nothing."""
    for route in ("server_info", "version"):
        try:
            reply = httpx.get(f"{url}/{route}", timeout=60.0)
            if reply.is_success:
                return reply.json()
        except (httpx.HTTPError, ValueError):
            continue
    return {}


def _resident_bytes(pid: int) -> int:
    """The memory of a process and of all that it started."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
