# SPDX-License-Identifier: Apache-2.0
"""Context that is only partly computed again: `python -m eval chunks --rows --data DIR`.

    --tokens  what a prefix cache and reuse of chunks compute for streams of requests, simulated;
              --data names a folder with traces of retrievers
    --rows    models as they come: the questions of `eval quality` with their facts as merged
              trees, as whole paths and as triples; nothing, or a share of them, computed again
    --methods all methods of FusionRAG, Cache-Craft and CacheBlend, the same questions with the
              text of their paths cut into chunks of 40 tokens
    --show    the tables of a report of --rows or --methods, as they stand in the docs
    --check   what is promised, judged by these reports and by those of `eval serve`; the exit code
              is 1 where a bar is missed. With --json, all of them as one report with its bars
    --quick   3 questions of each set, 200 requests of each stream

The oracle is HuggingFace in float32 on one thread; no server runs, and no time is measured. A
model is `NAME=DIR`; depcache-tiny and control, the two that are in the checkout, unless --models
names others. Each question that was asked is a line of the file --lines, and is not asked again.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from depcache.errors import ConfigError
from eval.chunks.bars import as_lines, join_reports, judge
from eval.chunks.simulate import NUM_QUICK as FEW
from eval.chunks.simulate import simulate
from eval.chunks.summary import summarise
from eval.chunks.table import read_tables
from eval.output import about, add_output, require, write_report
from eval.quality.prompts import SETS, make_sets
from eval.workloads.made_up import MADE_UP, make_made_up
from models.tiny.stages import SELF_ATTENTION, TINY, kept_folder

NUM_QUICK, NUM_QUESTIONS = 3, 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick=f"{NUM_QUICK} questions of each set, {FEW} requests")
    add = parser.add_argument
    add("--tokens", action="store_true", help="the table of tokens, simulated")
    add("--rows", action="store_true", help="the table of models as they come")
    add("--methods", action="store_true", help="the table of methods, on chunks")
    add("--show", type=Path, metavar="FILE", help="print the tables of a report")
    add("--check", type=Path, nargs="+", metavar="FILE", help="judge the bars of these reports")
    add("--data", type=Path, help="folder that holds the public sets (default: the demo only)")
    add(
        "--sets",
        nargs="+",
        choices=(*SETS, MADE_UP),
        default=list(SETS),
        help=f"(default: all but {MADE_UP})",
    )
    add("--models", nargs="+", metavar="NAME=DIR", help="(default: depcache-tiny and control)")
    add("--questions", type=int, help=f"of each set (default {NUM_QUESTIONS})")
    add("--lines", type=Path, help="JSONL file of the questions asked, to go on from")
    add("--seconds", type=float, default=math.inf, help="after which no question begins")
    grid = parser.add_mutually_exclusive_group()
    grid.add_argument(
        "--lean", action="store_true", help="fewer shares and selectors, in half the time"
    )
    grid.add_argument(
        "--core", action="store_true", help="whole paths alone, and the settings that decide"
    )
    add("--pruner", default="words", help="of the paths (default words)")
    add("--paths", type=int, default=20, help="of an entity, at most (default 20)")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    if args.show is not None:
        for model, table in read_tables(args.show).items():
            print(f"{model}\n\n{table}")
        return 0
    if args.check is not None:
        return check(args)
    if not (args.rows or args.tokens or args.methods):
        raise ConfigError("nothing is asked for: add --tokens, --rows, --methods or --check")
    started = time.perf_counter()
    report: dict[str, Any] = {}
    if args.tokens:
        if args.data is None:
            raise ConfigError("--tokens needs requests: name their folder with --data")
        report["tokens"] = simulate(args.data, quick=args.quick)
    if args.rows and args.methods and args.lines is not None:
        raise ConfigError("--lines is of one table: ask for --rows and --methods one by one")
    if args.rows:
        require("rouge_score", "scipy")
        report |= ask_questions(args, "untrained_trees")
    if args.methods:
        require("rouge_score", "scipy")
        report |= ask_questions(args, "quality")
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


def check(args: argparse.Namespace) -> int:
    """Join the reports, print a line for each bar, and write all; 1 where a bar is missed."""
    started = time.perf_counter()
    report = join_reports(args.check)
    bars = judge(report)
    for line in as_lines(bars):
        print(line)
    write_report(report | {"bars": bars} | about(args, time.perf_counter() - started), args.json)
    return int(any(bar["held"] is False for bar in bars.values()))


def ask_questions(args: argparse.Namespace, table: str) -> dict[str, Any]:
    """A table, `untrained_trees` or `quality`, and what it was asked with."""
    # Other commands of `python -m eval` do without torch.
    import torch

    from eval.chunks.methods import ask_methods
    from eval.chunks.rows import ask, ask_all, ask_core, read_lines
    from sglang_patches.tiers.disk.fingerprint import weights_digest

    torch.set_num_threads(1)
    err = Console(stderr=True, highlight=False)
    until = time.monotonic() + args.seconds
    models = read_models(args.models)
    number = args.questions or (NUM_QUICK if args.quick else NUM_QUESTIONS)
    with err.status("looking for paths"):
        numbers = {name: number for name in args.sets if name != MADE_UP}
        sets = make_sets(args.data, numbers, pruner=args.pruner, max_paths=args.paths)
        if MADE_UP in args.sets:
            sets[MADE_UP] = make_made_up(number, args.paths)
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder:
        if table == "quality":
            how = ask_methods
        else:
            how = ask_core if args.core else partial(ask, lean=args.lean)
        file = args.lines or Path(folder) / "lines.jsonl"
        with err.status("asking") as status:
            commit = about(args, 0).get("commit")
            ask_all(
                sets,
                models,
                file,
                commit=commit,
                until=until,
                how=how,
                tell=status.update,
            )
        lines = [
            line
            for line in read_lines(file)
            if line["model"] in models and line["set"] in sets and line["number"] < number
        ]
    return {
        table: summarise(lines),
        "weights": {name: weights_digest(folder) for name, folder in models.items()},
        "settings": {"pruner": args.pruner, "paths": args.paths, "models": list(models)},
        "asked_at_commits": sorted({line["commit"] for line in lines if line["commit"]}),
    }


def read_models(words: list[str] | None) -> dict[str, Path]:
    """Name to folder; ConfigError where a word is no `NAME=DIR` of a model."""
    if words is None:
        return {"depcache-tiny": kept_folder(TINY), SELF_ATTENTION: kept_folder(SELF_ATTENTION)}
    models: dict[str, Path] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not name or not equals or not Path(folder, "config.json").is_file():
            raise ConfigError(f"{word!r} names no model: write NAME=DIR, DIR with a config.json")
        models[name] = Path(folder)
    return models
