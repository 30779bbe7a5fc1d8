# SPDX-License-Identifier: Apache-2.0
"""Are the answers right? `python -m eval quality [--quick] [--data DIR] --json OUT`.

Asks real servers the demo's questions, those about two graphs with relations that no model was
trained on and, with --data, those of public sets: without facts, with ordinary attention over flat
and over deduplicated text, with dependency attention before and after fine-tuning, in every layout,
from a cold and from a warm cache. Every answer is scored against the best gold one: exact match,
F1, ROUGE-L; intervals are of a bootstrap, those of differences over the same questions.

    --quick   25 questions of each set, all of the demo

The models are those that ship with DepCache, unless --models names a folder that
`python -m models.tiny.train --control` made. Rows of a model that is not there are left out:
`base`, the one before fine-tuning, does not ship. Needs the extras `server` and `bench`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from depcache.cli.output import make_progress
from depcache.errors import ConfigError
from depcache.prompt.layout import LAYOUTS
from depcache.serving.launch import require_sglang
from eval.output import about, add_output, require, write_report
from eval.quality.plot import plot
from eval.quality.prompts import SETS, UNSEEN_SETS, Asked, make_sets
from eval.quality.scores import Score, interval, score
from eval.quality.systems import (
    FINE_TUNED,
    READERS,
    SAME_WEIGHTS,
    SELF_FLAT,
    WARM,
    System,
    make_systems,
    open_server,
)
from eval.workloads.questions import NUM_ASKED
from models.tiny.stages import KEPT, RECIPE, TINY, cycles_of, kept_folder

NUM_QUICK = 25
NUM_DEMO = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick=f"{NUM_QUICK} questions of each set")
    add = parser.add_argument
    add("--plot", type=Path, help="file for a picture, .png or .svg")
    add("--answers", type=Path, help="JSONL file for every answer, to see what went wrong")
    add("--data", type=Path, help="folder that holds the public sets (default: without them)")
    names = [*SETS, *UNSEEN_SETS]
    add("--sets", nargs="+", choices=names, default=names, help="(default: all)")
    add("--models", type=Path, help="folder with `dependency`, `control`, `base` (default: ours)")
    add("--readers", nargs="+", choices=READERS, default=list(READERS), help="(default: all)")
    add("--questions", type=int, help=f"of each set (default {NUM_ASKED})")
    add("--pruner", default="words", help="of the paths (default words)")
    add("--paths", type=int, default=20, help="of an entity, at most (default 20)")


def run(args: argparse.Namespace) -> int:
    """Ask, print and write; the exit code."""
    report = make_report(args)
    write_report(report, args.json)
    if args.plot is not None:
        plot(report["rows"], args.plot)
    return 0


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    """The report: rows, differences, whether warm is as cold, settings, machine."""
    require_sglang()
    require("rouge_score", "scipy")
    err = Console(stderr=True, highlight=False)
    started = time.perf_counter()
    number = args.questions or (NUM_QUICK if args.quick else NUM_ASKED)
    numbers = dict.fromkeys(args.sets, number)
    if "demo" in numbers:
        numbers["demo"] = args.questions or NUM_DEMO
    folders = _find_models(args, err)
    with err.status("looking for paths"):
        sets = make_sets(args.data, numbers, pruner=args.pruner, max_paths=args.paths)
    answers = _ask_everything(folders, sets, err)
    scores = {
        (name, system): [
            score(text, asked.answers) for text, asked in zip(texts, sets[name], strict=True)
        ]
        for (name, system), texts in answers.items()
    }
    if args.answers is not None:
        _write_answers(args.answers, sets, answers, scores)
    rows = [_make_row(name, system, each) for (name, system), each in scores.items()]
    differences = compare(scores)
    for name in sets:
        err.print(_make_table(name, rows))
    err.print(_make_difference_table(differences))
    tree = {
        (name, system.is_warm): texts
        for (name, system), texts in answers.items()
        if system.name in (FINE_TUNED, WARM) and system.layout == "tree"
    }
    different = {
        name: sum(a != b for a, b in zip(tree[name, False], tree[name, True], strict=True))
        for name, is_warm in tree
        if is_warm
    }
    return {
        "rows": rows,
        "differences": differences,
        # Unknown where the model was not asked.
        "warm_equals_cold": not any(different.values()) if different else None,
        "answers_that_differ_when_warm": different,
        "reachable": {
            name: round(sum(asked.is_reachable() for asked in questions) / len(questions), 4)
            for name, questions in sets.items()
        },
        "settings": {"pruner": args.pruner, "paths": args.paths, "models": _models(args)},
        **about(args, time.perf_counter() - started),
    }


def _find_models(args: argparse.Namespace, err: Console) -> dict[str, Path]:
    """The folders of the readers that are there; ConfigError without one that must be."""
    models = args.models or RECIPE
    folders: dict[str, Path] = {}
    for name in args.readers:
        kept = [] if args.models or name not in KEPT else [kept_folder(name)]
        if cycles := cycles_of(models, name) or kept:
            folders[name] = cycles[-1]
        elif name == TINY:
            raise ConfigError(
                f"{str(models)!r} has no model {name!r}: make it with models.tiny.train"
            )
        else:
            err.print(f"There is no model {name!r}: its rows are left out.", style="yellow")
    if not folders:
        names = " or ".join(args.readers)
        raise ConfigError(
            f"{str(models)!r} has no model {names!r}: make one with models.tiny.train"
        )
    return folders


def _ask_everything(
    folders: dict[str, Path], sets: dict[str, list[Asked]], err: Console
) -> dict[tuple[str, System], list[str]]:
    answers: dict[tuple[str, System], list[str]] = {}
    systems = [system for system in make_systems() if system.reader in folders]
    with (
        tempfile.TemporaryDirectory(prefix="depcache-eval-") as temporary,
        make_progress(err) as progress,
    ):
        total = len(systems) * sum(map(len, sets.values()))
        task = progress.add_task("starting", total=total)
        for (reader, reencodes), group in groupby(systems, lambda s: (s.reader, s.reencodes)):
            progress.update(task, description=f"starting the server of {folders[reader].name}")
            log_file = Path(temporary) / "server.log"
            with open_server(folders[reader], log_file, reencodes=reencodes) as asker:
                for system in group:
                    for name, questions in sets.items():
                        progress.update(task, description=f"{system.name} {system.layout}: {name}")
                        texts = answers[name, system] = []
                        for text in asker.ask_all(system, questions, name):
                            texts.append(text)
                            progress.advance(task)
    return answers


def _write_answers(
    file: Path,
    sets: dict[str, list[Asked]],
    answers: dict[tuple[str, System], list[str]],
    scores: dict[tuple[str, System], list[Score]],
) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for (name, system), texts in answers.items():
            found = zip(sets[name], texts, scores[name, system], strict=True)
            for asked, text, each in found:
                line = {
                    "set": name,
                    "system": system.name,
                    "layout": system.layout,
                    "question": asked.text,
                    "answer": text,
                    "golds": asked.answers,
                    "reachable": asked.is_reachable(),
                    **asdict(each),
                }
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def _make_row(name: str, system: System, scores: Sequence[Score]) -> dict[str, Any]:
    row: dict[str, Any] = {"set": name, "system": system.name, "layout": system.layout}
    for measure in ("em", "f1", "rouge_l"):
        values = [getattr(each, measure) for each in scores]
        row[measure] = round(sum(values) / len(values), 4)
        row[f"{measure}_95"] = [round(end, 4) for end in interval(values)]
    return row | {"n": len(scores)}


def compare(scores: dict[tuple[str, System], list[Score]]) -> list[dict[str, Any]]:
    """Exact match of dependency attention less that of ordinary, question by question."""
    exact = {
        (name, system.name, system.layout): np.array([each.em for each in found])
        for (name, system), found in scores.items()
    }
    names = dict.fromkeys(name for name, _ in scores)
    differences: list[dict[str, Any]] = []
    for name, layout, other in product(names, LAYOUTS, (SELF_FLAT, SAME_WEIGHTS)):
        if (name, other, "") not in exact or (name, FINE_TUNED, layout) not in exact:
            continue
        values = exact[name, FINE_TUNED, layout] - exact[name, other, ""]
        row: dict[str, Any] = {"set": name, "layout": layout, "against": other}
        row["em"] = round(values.mean().item(), 4)
        row["em_95"] = [round(end, 4) for end in interval(values)]
        differences.append(row)
    return differences


def _make_difference_table(differences: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, title=f"EM of {FINE_TUNED} less that of", title_justify="left")
    for title in ("set", "layout", "against"):
        table.add_column(title)
    for title in ("points", "95 %"):
        table.add_column(title, justify="right")
    for row in differences:
        low, high = row["em_95"]
        figures = [f"{100 * row['em']:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        table.add_row(row["set"], row["layout"], row["against"], *figures)
    return table


def _make_table(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    mine = [row for row in rows if row["set"] == name]
    table = Table(box=None, title=f"{name}, {mine[0]['n']} questions", title_justify="left")
    table.add_column("system")
    table.add_column("layout")
    for title in ("EM", "95 %", "F1", "ROUGE-L"):
        table.add_column(title, justify="right")
    for row in mine:
        low, high = row["em_95"]
        figures = [f"{100 * row['em']:.1f}", f"{100 * low:.1f}-{100 * high:.1f}"]
        figures += [f"{100 * row[key]:.1f}" for key in ("f1", "rouge_l")]
        table.add_row(row["system"], row["layout"], *figures)
    return table


def _models(args: argparse.Namespace) -> str:
    return args.models.name if args.models else "depcache-tiny"
