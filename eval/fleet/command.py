# SPDX-License-Identifier: Apache-2.0
"""Several servers behind SMG: `python -m eval fleet --smg ENVIRONMENT/bin/smg --json OUT`.

    routing   the share of the context that is reused, with and without the system message that all
              requests share; and the load of the busiest server by the mean; for requests of 1, 2
              and 3 entities:
                  random       any server
                  cache_aware  SMG's own: the server that has seen the most similar beginning
                  keys         consistent hashing of the key that `depcache.Client` sends
                  picker       the server that `depcache picker` names, by what each holds
    answers   whether they are those of one server alone, by keys and with the picker
    killed    one server is killed while requests run that the picker is asked about: how many are
              lost, how many are wrong; with the part `answers`
    shared_disk  what a server computes of what another on the same disk folder was asked before
    heard     how many seconds after a request a picker knows what the server holds now

The servers are real, with a pool that holds a few of the entities. SMG is the package `smg`, in an
environment of its own; without `--smg` only `shared_disk` and `heard` are measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
from depcache.serving.random_model import find_model, is_trained
from depcache.serving.tiny import TINY_NAME
from eval.fleet.drive import ask_all, num_answered, num_system_tokens
from eval.fleet.heard import measure_heard
from eval.fleet.requests import make_requests
from eval.fleet.router import pick, route, smg_version
from eval.fleet.shared_disk import measure_shared_disk
from eval.output import about, add_output, write_report
from eval.servers import flush
from eval.soak.server import Server, Setup

PICKER = "picker"

POLICIES = {
    "random": ("random", False),
    "cache_aware": ("cache_aware", False),
    "keys": ("consistent_hashing", True),
    PICKER: ("consistent_hashing", True),
}
"""Our name -> SMG's policy, and whether requests have their keys."""

PARTS = ("routing", "answers", "shared_disk", "heard")
ROUTED = {"routing", "answers"}
"""Parts that need a router. Where a server is killed is told with the answers."""

NUM_COMPARED, ANSWER_TOKENS = 60, 12
NUM_BEFORE, NUM_HEARD, NUM_HEARD_QUICK = 120, 60, 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="150 requests of two entities")
    add = parser.add_argument
    add("--smg", type=Path, help="the command smg, of an environment of its own")
    add("--servers", type=int, default=2, help="(default 2)")
    add("--model", default=TINY_NAME, help="a folder, depcache-tiny, or random weights: 30m, 125m")
    add("--pool-tokens", type=int, default=4000, help="for KV of each server (default 4000)")
    add("--entities", type=int, nargs="+", default=[1, 2, 3], help="of a request (default 1 2 3)")
    add("--graph", type=int, default=1000, help="entities of the graph (default 1000)")
    add("--requests", type=int, help="that are counted (default 800; quick 150)")
    add("--warm", type=int, help="before them (default 400; quick 100)")
    add("--seed", type=int, default=0)
    add("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    require_sglang()
    if args.servers < 2:
        raise ConfigError(f"--servers is {args.servers}: a fleet has at least 2")
    parts = set(args.only or PARTS)
    if args.smg is None and args.only and (routed := sorted(ROUTED & parts)):
        raise ConfigError(f"--only names {' and '.join(routed)}: that needs --smg")
    version = None if args.smg is None else smg_version(args.smg)
    err = Console(stderr=True, highlight=False)
    model = find_model(args.model)
    started = time.perf_counter()
    # The name that `depcache.Client` asks for: a router knows servers by their models.
    named = ("--served-model-name", "default")
    settings = {"host_gb": "0", "disk_gb": "0", "root_events": "tcp://127.0.0.1:*"}
    # Servers that each take all cores stand in each other's way, and look dead to the router.
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // args.servers))}
    setup = Setup(model, args.pool_tokens, settings, named, threads)
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as name:
        folder = Path(name)
        if "shared_disk" in parts:
            with err.status("one disk folder"):
                requests = make_requests(
                    NUM_COMPARED, 2, num_entities=args.graph, seed=args.seed + 2
                )
                report["shared_disk"] = measure_shared_disk(setup, requests, folder)
        if "heard" in parts:
            with err.status("root events"):
                number = NUM_HEARD_QUICK if args.quick else NUM_HEARD
                requests = make_requests(
                    NUM_BEFORE + number, 2, num_entities=args.graph, seed=args.seed + 3
                )
                report["heard"] = measure_heard(setup, requests, folder, num_timed=number)
        if version is not None and ROUTED & parts:
            # More servers than cores: those with nothing to do must not spin.
            setup = replace(setup, sglang_args=(*named, "--sleep-on-idle"))
            with _servers(setup, args.servers, folder) as servers:
                if "routing" in parts:
                    with err.status("routing") as status:
                        report["routing"] = _measure_routing(servers, args, folder, status.update)
                    err.print(to_table(report["routing"]))
                if "answers" in parts:
                    with err.status("answers, and one server killed"):
                        report |= _compare_and_kill(servers, args, folder)
    report |= {
        "servers": args.servers,
        "pool_tokens": args.pool_tokens,
        "model": {"name": args.model, "trained": is_trained(model)},
        "smg": version,
    }
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


@contextmanager
def _servers(setup: Setup, number: int, folder: Path) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        names = [f"server-{each}" for each in range(number)]
        yield [stack.enter_context(Server(setup, folder, name)) for name in names]


def _measure_routing(
    servers: Sequence[Server], args: argparse.Namespace, folder: Path, tell: Any
) -> list[dict[str, Any]]:
    urls = [server.url for server in servers]
    number = (150 if args.quick else 800) if args.requests is None else args.requests
    warm = (100 if args.quick else 400) if args.warm is None else args.warm
    rows: list[dict[str, Any]] = []
    system = num_system_tokens(urls[0])
    for per_request in [2] if args.quick else args.entities:
        requests = make_requests(
            warm + number, per_request, num_entities=args.graph, seed=args.seed
        )
        for name, (policy, sends_keys) in POLICIES.items():
            tell(f"{name}, {per_request} entities")
            for url in urls:
                flush(url)
            log = folder / f"smg-{name}-{per_request}.log"
            with ExitStack() as stack:
                url = stack.enter_context(route(args.smg, policy, urls, log))
                asked: dict[str, Any] = {"sends_keys": sends_keys}
                if name == PICKER:
                    log = folder / f"picker-{per_request}.log"
                    asked["picker"] = stack.enter_context(pick(urls, log))
                ask_all(url, requests[:warm], **asked)
                before = [num_answered(each) for each in urls]
                outcome = ask_all(url, requests[warm:], **asked)
                after = [num_answered(each) for each in urls]
            load = [last - first for first, last in zip(before, after, strict=True)]
            rows.append(
                {
                    "entities": per_request,
                    "policy": name,
                    "requests": number,
                    "lost": len(outcome.errors),
                    "why_lost": sorted(set(outcome.errors))[:3],
                    "hit": _rounded(outcome.hit),
                    "entity_hit": _rounded(outcome.hit_behind(system)),
                    "max_mean_load": max_mean_load(load),
                }
            )
    return rows


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def max_mean_load(load: Sequence[int]) -> float | None:
    """Requests of the busiest server by the mean of all; None where none answered any."""
    return round(max(load) * len(load) / sum(load), 3) if sum(load) else None


def _compare_and_kill(
    servers: Sequence[Server], args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    requests = make_requests(NUM_COMPARED, 2, num_entities=args.graph, seed=args.seed + 1)
    for server in servers:
        flush(server.url)
    alone = ask_all(servers[0].url, requests, answer_tokens=ANSWER_TOKENS).texts
    urls = [server.url for server in servers]
    with (
        route(args.smg, "consistent_hashing", urls, folder / "smg-answers.log") as url,
        pick(urls, folder / "picker-answers.log") as picker,
    ):
        routed = ask_all(url, requests, answer_tokens=ANSWER_TOKENS).texts
        picked = ask_all(url, requests, answer_tokens=ANSWER_TOKENS, picker=picker).texts

        def kill_one(num_answered: int) -> None:
            if num_answered == NUM_COMPARED // 3:
                servers[0].kill()

        killed = ask_all(
            url, requests, answer_tokens=ANSWER_TOKENS, picker=picker, on_answer=kill_one
        ).texts
    differ = [text is not None and text != one for text, one in zip(killed, alone, strict=True)]
    return {
        "answers_equal": routed == picked == alone,
        "killed": {"asked": len(killed), "lost": killed.count(None), "wrong": sum(differ)},
    }


def to_table(routing: Sequence[dict[str, Any]]) -> Table:
    """The table of routing for people."""
    table = Table(
        "entities", "policy", "reused %", "without the system %", "busiest / mean", "lost"
    )
    for row in routing:
        hits = [
            "" if row[key] is None else f"{100 * row[key]:.1f}" for key in ("hit", "entity_hit")
        ]
        load = "" if row["max_mean_load"] is None else f"{row['max_mean_load']:.2f}"
        table.add_row(str(row["entities"]), row["policy"], *hits, load, str(row["lost"]))
    return table
