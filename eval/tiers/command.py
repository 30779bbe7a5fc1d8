# SPDX-License-Identifier: Apache-2.0
"""What the tiers are worth: `python -m eval tiers --quick --json OUT`.

Starts a server with a host and a disk tier and asks it the same prompts with their KV nowhere
(cold), on the device, in host memory, and on disk after a restart; see `eval.tiers.phases`. One
request at a time, streamed; the time to the first token is taken at the client. Once for each
load policy: `always` loads whatever is there, `faster` what was measured to come sooner than
computing it.

    --quick   5 prompts of each size; about 5 minutes on two quiet cores
    --hidden  in their place, how much of what comes from disk a queue hides: the same prompts with
              1 to 16 at once, see `eval.tiers.hidden`. Loads whatever is there

The graph is the demo's own unless --data names another. The values on disk may be in the
system's page cache, as they are after the restart of a server; --drop-page-cache empties it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from depcache.cli.output import make_progress
from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
from depcache.serving.random_model import ensure_model, is_trained
from eval.output import about, add_output, write_report
from eval.tiers.figures import make_movement, make_rows, make_table
from eval.tiers.hidden import make_hidden_table, measure_hidden, num_hidden_steps
from eval.tiers.phases import measure, num_steps
from eval.tiers.prompts import TierPrompt, make_prompts
from eval.tiers.server import LiveServer, ServerSettings, drop_page_cache, start_live
from eval.tokenizer import read_tokenizer
from eval.workloads.graphs import SAMPLE, open_graph

LOAD_POLICIES = ("always", "faster")
SIZES = (500, 1000, 2000)
NUM_PROMPTS, NUM_PROMPTS_QUICK = 20, 5
NUM_WARM_UPS = 2
"""Prompts of each size before the measured ones: the server trusts three observations."""
COPY_BYTES = 256 << 20
# Tokens of a prompt besides its context: system message, chat template, question.
_OTHER_TOKENS = 200
# Two versions of every prompt are held at a time, and a waiting request may fill half the host.
_ROOM = 2.5
# Trees, and the same facts as whole rows, which are up to three times as long.
_ROOM_HIDDEN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick=f"{NUM_PROMPTS_QUICK} prompts of each size")
    add = parser.add_argument
    add("--data", type=Path, help="folder that holds the graphs")
    add("--graph", help="folder of the graph in it (default: the demo's graph; metaqa with --data)")
    add("--model", help="model to serve (default: one of 30 million random weights)")
    add("--tokens", type=int, nargs="+", default=list(SIZES), help="of a context; about")
    add("--prompts", type=int, help=f"of each size (default {NUM_PROMPTS})")
    add("--paths", type=int, default=30, help="most paths of an entity (default 30)")
    add("--entities", type=int, default=0, help="most entities of a prompt (default: no limit)")
    add("--hops", type=int, default=2, help="edges of the longest path (default 2)")
    add("--load-policies", nargs="+", choices=LOAD_POLICIES, help="default: both")
    add("--hidden", action="store_true", help="how much of loading from disk a queue hides")
    add("--rounds", type=int, default=3, help="of --hidden (default 3)")
    add("--folder", type=Path, help="on the disk to measure (default: temporary)")
    add("--drop-page-cache", action="store_true", help="read from the disk itself after a restart")
    add("--seed", type=int, default=0, help="of the prompts (default 0)")
    add("--sglang", nargs=argparse.REMAINDER, default=[], help="more flags of SGLang; the last")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    report = make_report(args)
    write_report(report, args.json)
    return 0


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    """The report: rows, what moving took, settings, machine."""
    if args.rounds < 1:
        raise ConfigError(f"--rounds is {args.rounds}: ask for 1 or more")
    if args.hidden and args.load_policies:
        raise ConfigError("--hidden loads whatever is there: leave --load-policies out")
    require_sglang()
    err = Console(stderr=True, highlight=False)
    with err.status("making a model of random weights (once)"):
        model = args.model or str(ensure_model())
    count = args.prompts or (NUM_PROMPTS_QUICK if args.quick else NUM_PROMPTS)
    prompts, warm_ups = _make_all(args, model, count)
    settings = _make_settings(args, model, [*prompts, *warm_ups])
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="depcache-eval-", dir=args.folder) as name,
        make_progress(err) as progress,
    ):
        bench = _Bench(settings, Path(name), args.drop_page_cache, progress)
        if args.hidden:
            measured = _measure_hidden(bench, prompts, args.rounds)
        else:
            policies = args.load_policies or LOAD_POLICIES
            measured = _measure_policies(bench, policies, prompts, warm_ups)
    said = about(args, time.perf_counter() - started)
    said["machine"] |= {
        "load_average": [round(load, 2) for load in bench.loads],
        "memory_copy_bytes_per_s": _copy_rate(),
    }
    return said | {
        **measured,
        "settings": {
            "model": Path(model).name,
            "trained": is_trained(model),
            "graph": _graph(args),
            "prompts_of_each_size": count,
            "context_tokens": {
                str(size): [p.num_tokens for p in prompts if p.size == size] for size in args.tokens
            },
            "pool_tokens": settings.pool_tokens,
            "host_gb": settings.host_gb,
            "disk_gb": settings.disk_gb,
            "write_policy": settings.write_policy,
            "drop_page_cache": args.drop_page_cache,
            "bytes_per_token": bench.bytes_per_token,
            "seed": args.seed,
        },
    }


@dataclass
class _Bench:
    """What both measurements start servers with.

    bytes_per_token  of KV, which only a server can tell; 0 before the first
    loads            the machine's load before the first server, and after each measurement
    """

    settings: ServerSettings
    folder: Path
    drops_page_cache: bool
    progress: Progress
    bytes_per_token: int = 0
    loads: list[float] = field(default_factory=lambda: [os.getloadavg()[0]])

    @contextmanager
    def start(self, policy: str) -> Iterator[LiveServer]:
        log_file = self.folder / "server.log"
        with start_live(self.settings, policy, self.folder / policy, log_file) as server:
            self.bytes_per_token = server.bytes_per_token
            yield server

    def between(self, policy: str) -> None:
        if self.drops_page_cache:
            drop_page_cache(self.folder / policy)

    def count_steps(self, policy: str, number: int) -> Callable[[str], None]:
        """Returns what is called with a word on what is going on, so many times."""
        task = self.progress.add_task(policy, total=number)

        def on_step(text: str) -> None:
            self.progress.update(task, advance=1, description=f"{policy}: {text}")

        return on_step


def _measure_policies(
    bench: _Bench,
    policies: Sequence[str],
    prompts: list[TierPrompt],
    warm_ups: list[TierPrompt],
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    movements: list[dict[str, Any]] = []
    for policy in policies:
        done = measure(
            partial(bench.start, policy),
            prompts,
            warm_ups,
            on_step=bench.count_steps(policy, num_steps(len(prompts), len(warm_ups))),
            between=partial(bench.between, policy),
        )
        rows += make_rows(policy, done, bench.bytes_per_token)
        movements.append(make_movement(policy, done))
        bench.loads.append(os.getloadavg()[0])
        bench.progress.print(make_table(policy, rows))
        bench.progress.print(_to_line(movements[-1]))
    return {"rows": rows, "movements": movements}


def _measure_hidden(bench: _Bench, prompts: list[TierPrompt], rounds: int) -> dict[str, Any]:
    policy = "always"
    with bench.start(policy) as server:
        rows = measure_hidden(
            server,
            prompts,
            rounds=rounds,
            on_step=bench.count_steps(policy, num_hidden_steps(len(prompts), rounds)),
            between=partial(bench.between, policy),
        )
    bench.loads.append(os.getloadavg()[0])
    bench.progress.print(make_hidden_table(rows))
    return {"hidden": rows}


def _make_all(
    args: argparse.Namespace, model: str, count: int
) -> tuple[list[TierPrompt], list[TierPrompt]]:
    file = Path(model) / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{model!r} is no folder with a tokenizer.json: give a local --model")
    tokenizer = read_tokenizer(file)
    with open_graph(args.data, _graph(args)) as store:
        made = make_prompts(
            store,
            tokenizer,
            args.tokens,
            count + NUM_WARM_UPS,
            num_hops=args.hops,
            max_paths=args.paths,
            max_entities=args.entities,
            seed=args.seed,
        )
    num_warm_ups = NUM_WARM_UPS * len(args.tokens)
    return made[num_warm_ups:], made[:num_warm_ups]


def _make_settings(
    args: argparse.Namespace, model: str, prompts: list[TierPrompt]
) -> ServerSettings:
    room = _ROOM_HIDDEN if args.hidden else _ROOM
    num_tokens = math.ceil(room * sum(p.num_tokens + _OTHER_TOKENS for p in prompts))
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    # Four bytes an element at most: float32 on a CPU.
    gigabytes = num_tokens * 2 * config["num_hidden_layers"] * heads * head_dim * 4 / 1e9
    return ServerSettings(
        model=model,
        pool_tokens=num_tokens,
        host_gb=round(gigabytes, 3),
        disk_gb=round(2 * gigabytes, 3),
        write_policy="write_back",
        sglang_args=tuple(args.sglang),
    )


def _graph(args: argparse.Namespace) -> str:
    return args.graph or (SAMPLE if args.data is None else "metaqa")


def _copy_rate() -> int:
    """Bytes a second of a copy in memory by one thread: no load can be faster than this."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - started)
    return round(COPY_BYTES / best)


def _to_line(movement: dict[str, Any]) -> str:
    return (
        f"{movement['load_policy']}: start {movement['start_s_empty_folder']:.1f} s with an empty "
        f"folder, {movement['start_s_warm_folder']:.1f} s with {movement['disk_values']:,} values; "
        f"{movement['disk_bytes'] / 1e6:.0f} MB on disk, "
        f"written with {movement['disk_write_bytes_per_s'] / 1e6:.0f} MB/s "
        f"and fetched with {movement['disk_read_bytes_per_s'] / 1e6:.0f} MB/s"
    )
