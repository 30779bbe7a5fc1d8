# SPDX-License-Identifier: Apache-2.0
"""Hit rates of replacement policies and schedulers: `python -m eval policy --quick --json OUT`.

Replays workloads through the tree, the policies, the planner and the schedulers of the server,
without a model. The hit rate is the share of context tokens (the system prompt is left out)
that were cached when their request ran; the first requests are a warm-up and not counted.

    --quick   one seed, 4, 8 and 16 GB, queue of 64; minutes
    (else)    three seeds, queues of 64, 16, 4 and 1, shares of the working set, retrieval traces

Without --data a graph is made up.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from depcache.cli.output import make_progress
from depcache.errors import ConfigError
from depcache.install_hints import install_command
from depcache.plan.schedule import FCFS, MAX_PASSED
from depcache.serving.tiny import resolve_model
from eval.output import about, add_output, write_report
from eval.policy.graph import write_made_graph
from eval.policy.matrix import (
    TOKEN_BYTES,
    Cell,
    Grid,
    make_cells,
    run_cells,
)
from eval.policy.orders import ORDERS
from eval.policy.policies import POLICIES
from eval.policy.prepared import read_prepared
from eval.policy.replay import PRIVATE_TOKENS, Outcome, ReplaySettings
from eval.policy.report import SYNTHETIC, make_rows, make_summary, make_table, write_plot
from eval.policy.table_streams import is_table_stream
from eval.policy.workloads import PolicySpec, Source, list_traces
from eval.sets import SetError

POOL = 1500
"""Entities: about 40 GB of KV over MetaQA, so that 16 GB under LRU and uniform requests hit 40 %,
as in the paper (section 6.4.1), which does not say how many entities it sampled."""
SHARE_POOL = 10_000
"""Entities where the capacity is a share: 1 % of it still holds several requests."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="one seed, fewer requests and combinations")
    add = parser.add_argument
    add("--plot", type=Path, help="PNG of the hit rates (needs matplotlib)")
    add("--data", type=Path, help="folder that holds the graphs")
    add("--graph", default="metaqa", help="folder of the graph in it (default metaqa)")
    add("--chunks", type=Path, help="folder of the retrieval traces (default: chunks beside it)")
    add("--tables", type=Path, help="folder of the schemas, for whole:bird, lake:sql:6, ...")
    add("--tokenizer", help="of this model: a folder or depcache-tiny (default: made of the texts)")
    add("--cache", type=Path, help="folder to keep prepared workloads in")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    add("--workloads", nargs="+", help="only these (uniform zipfian temporal chunks_musique ...)")
    add("--policies", nargs="+", help=f"only these of {', '.join(POLICIES)}")
    add("--schedulers", nargs="+", help=f"only these of {', '.join(ORDERS)}")
    add("--scheduled", nargs="+", help="policies that reordering is combined with")
    add("--capacity-gb", type=float, nargs="*", help="GB of Llama-3-8B KV (default 4 8 16)")
    add("--capacity-share", type=float, nargs="*", help="parts of the working set, as 0.01")
    add("--depths", type=int, nargs="+", help="waiting requests; the first is the main one")
    add("--requests", type=int, help="requests of a workload (default 1500; quick 600)")
    add("--pool", type=int, default=POOL, help=f"entities that are asked about (default {POOL})")
    add("--share-pool", type=int, default=SHARE_POOL, help=f"for shares (default {SHARE_POOL})")
    add("--seeds", type=int, nargs="+", help="default 0 1 2; quick 0")
    add("--warmup", type=float, default=0.2, help="share of requests not counted (default 0.2)")
    add("--running", type=int, default=1, help="requests that run at once (default 1)")
    add(
        "--private-tokens",
        type=int,
        default=PRIVATE_TOKENS,
        help=f"slots of a request's task and answer (default {PRIVATE_TOKENS})",
    )
    add(
        "--max-passed",
        type=int,
        default=MAX_PASSED,
        help=f"how often a request may be passed over (default {MAX_PASSED})",
    )


def run(args: argparse.Namespace) -> int:
    """Replay, print and write; the exit code."""
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder:
        report = measure(args, Path(folder))
    write_report(report, args.json)
    return 0


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report. `folder` takes the prepared workloads if no other was given."""
    started = time.perf_counter()
    grid = make_grid(args)
    settings = ReplaySettings(
        capacity=0,
        num_running=args.running,
        private_tokens=args.private_tokens,
        warmup=args.warmup,
        max_passed=args.max_passed,
    )
    cache = args.cache or folder
    graph, chunks, notes = find_data(args, cache)
    model = None if args.tokenizer is None else Path(resolve_model(args.tokenizer))
    source = Source(graph, chunks, cache, args.tables, model)
    err = Console(stderr=True, highlight=False)
    cells: list[Cell] = []
    sizes: list[dict[str, Any]] = []
    for spec, part in make_specs(args, grid, chunks):
        err.print(f"preparing {spec.kind}, seed {spec.seed}", style="dim")
        file = source.prepare(spec)
        prepared = read_prepared(file)
        made = make_cells(spec, file, prepared.working_set, part, settings)
        num_requests = len(prepared.token_indptr) - 1
        sizes.append(
            asdict(spec)
            | {
                "num_requests": num_requests,
                "tokens_per_request": round(len(prepared.tokens) / max(1, num_requests)),
                "working_set_tokens": prepared.working_set,
                "working_set_gb": round(prepared.working_set * TOKEN_BYTES / 2**30, 2),
            }
        )
        cells += made
    results, left_out = _run(cells, args.jobs, err)
    rows = make_rows(results)
    depth = grid.depths[0]
    err.print(make_table(rows))
    summary = make_summary(rows, depth)
    err.print(f"LACR gains, points: {summary['gain_points']}")
    err.print(f"Belady above LACR, points: {summary['belady_gap_points']}")
    if args.plot is not None and not write_plot(args.plot, rows, depth):
        notes.append(f"no plot: {install_command('bench')}")
    return {
        "rows": rows,
        **summary,
        "workloads": sizes,
        "left_out": sorted(left_out),
        "notes": notes,
        "settings": {
            "token_bytes": TOKEN_BYTES,
            "gb_bytes": 2**30,
            "queue_depth": depth,
            "warmup": args.warmup,
            "num_running": args.running,
            "private_tokens": args.private_tokens,
            "max_passed": args.max_passed,
            "tokenizer": args.tokenizer,
            "quick": args.quick,
        },
        **about(args, time.perf_counter() - started),
    }


def _run(
    cells: Sequence[Cell], jobs: int, err: Console
) -> tuple[list[tuple[Cell, Outcome]], set[str]]:
    """Outcomes in the order of the cells, and why some are missing."""
    found: dict[Cell, Outcome] = {}
    left_out: set[str] = set()
    with make_progress(err) as progress:
        task = progress.add_task("replaying", total=len(cells))
        for cell, outcome in run_cells(cells, max(1, jobs)):
            if isinstance(outcome, str):
                left_out.add(f"{cell.spec.kind}, {cell.settings.capacity:,} tokens: {outcome}")
            else:
                found[cell] = outcome
            progress.advance(task)
    return [(cell, found[cell]) for cell in cells if cell in found], left_out


def make_grid(args: argparse.Namespace) -> Grid:
    """What is varied; ConfigError for a name that does not exist."""
    known = list(POLICIES)
    names = tuple(args.policies or known)
    schedulers = tuple(args.schedulers or ORDERS)
    scheduled = tuple(args.scheduled or (name for name in names if name in ("lru", "lfu", "lacr")))
    for given, choices in ((names, known), (scheduled, known), (schedulers, ORDERS)):
        for name in given:
            if name not in choices:
                raise ConfigError(f"{name!r} does not exist: use {', '.join(choices)}")
    shares = args.capacity_share
    if shares is None:
        shares = () if args.quick else (0.01, 0.02, 0.05, 0.1)
    gigabytes = args.capacity_gb if args.capacity_gb is not None else (4.0, 8.0, 16.0)
    if not gigabytes and not shares:
        raise ConfigError("there is no capacity: give --capacity-gb or --capacity-share")
    # The quick run looks at the schedulers at one capacity only, the middle one.
    capacities = sorted([*gigabytes, *shares])
    return Grid(
        scheduled_at=(capacities[len(capacities) // 2],) if args.quick else (),
        gigabytes=tuple(gigabytes),
        shares=tuple(shares),
        policies=names if FCFS in schedulers else (),
        schedulers=schedulers,
        scheduled=scheduled,
        depths=tuple(args.depths or ((64,) if args.quick else (64, 16, 4, 1))),
    )


def make_specs(
    args: argparse.Namespace, grid: Grid, chunks: Path | None
) -> list[tuple[PolicySpec, Grid]]:
    """Every workload with what is varied on it."""
    kinds = list(args.workloads or SYNTHETIC)
    if not args.workloads and not args.quick and chunks is not None:
        kinds += list_traces(chunks)
    num_requests = args.requests or (600 if args.quick else 1500)
    specs: list[tuple[PolicySpec, Grid]] = []
    by_gb = replace(grid, shares=())
    by_share = replace(grid, gigabytes=())
    for kind in kinds:
        if kind not in SYNTHETIC:
            specs.append((PolicySpec(kind, 0, num_requests), grid))
            continue
        for seed in args.seeds or ((0,) if args.quick else (0, 1, 2)):
            if grid.gigabytes:
                specs.append((PolicySpec(kind, args.pool, num_requests, seed), by_gb))
            if grid.shares:
                specs.append((PolicySpec(kind, args.share_pool, num_requests, seed), by_share))
    return specs


def find_data(args: argparse.Namespace, cache: Path) -> tuple[Path, Path | None, list[str]]:
    """The file of triples, the folder of the traces, and what a reader of the report must know."""
    if args.data is None:
        made = write_made_graph(cache / "made-graph.tsv")
        is_asked = not all(map(is_table_stream, args.workloads or SYNTHETIC))
        notes = ["no --data: the graph is made up, not MetaQA"] if is_asked else []
        return made, args.chunks, notes
    folder = args.data / args.graph
    graph = next((path for path in sorted(folder.glob("triples.tsv*"))), None)
    if graph is None:
        raise SetError(f"{str(folder)!r} has no triples.tsv or triples.tsv.gz: check --data")
    chunks = args.chunks or args.data.parent / "chunks"
    return graph, chunks if chunks.is_dir() else None, []
