# SPDX-License-Identifier: Apache-2.0
"""What reusing tables saves: `python -m eval tables --data DIR [--quick] --json FILE`.

Counts the tokens of text-to-SQL prompts over the schemas and questions of a folder (see
`eval.tables.sets`), by what is reused (`eval.tables.simulate`): ordinary prefix caches, with the
tables as they come, in the order in which the schema declares them, and by how often they are
asked; and tables that are computed once. Then the same of agents, which ask several times about the
same tables (`eval.tables.agents`), and of prompts that hold some columns of each table
(`eval.tables.wide`). No model answers anything.

    --join     takes finished reports of `eval serve`, `eval policy`, and the last two below, into
               the same file (`eval.tables.joined`)
    --quick    100 questions of each workload and one order of them instead of three; and a few on
               real servers, replayed, and ahead (`eval.tables.parts`); answers too with --models
    --tokens   only counting
    --ahead    only a real server, which computes the tables of BIRD ahead (`eval.tables.ahead`)
    --answers  only whether answers are right, by what a table sees (`eval.tables.answers`):
               `--models` names what `python -m models.tiny.train_tables` has written
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from depcache.serving.random_model import find_model
from eval.output import about, add_output, write_report
from eval.tables.agents import simulate_agents
from eval.tables.agreement import measure_agreement
from eval.tables.ahead import measure_ahead
from eval.tables.answers import MADE_UP, SETS, make_set, measure_answers
from eval.tables.joined import join_reports
from eval.tables.parts import make_commands, run_parts
from eval.tables.sets import read_sql_set
from eval.tables.simulate import SYSTEMS, simulate
from eval.tables.wide import SYSTEMS as WIDE_SYSTEMS
from eval.tables.wide import simulate_wide

NUM_QUICK = 40
"""Questions of each set with --answers --quick."""

NUM_FORCED = 100
"""Questions of the made-up set whose answers are forced, see `eval.tables.agreement`."""

CHARS_PER_TOKEN = 3.6
"""What schemas have in ordinary vocabularies."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="few questions, and all parts that take minutes")
    parser.add_argument("--data", type=Path, help="folder with NAME_schemas.jsonl, or above it")
    parser.add_argument("--join", type=Path, nargs="+", default=[], help="finished reports")
    parser.add_argument("--tokens", action="store_true", help="only counting, without a server")
    parser.add_argument("--ahead", action="store_true", help="only tables computed ahead, served")
    parser.add_argument("--answers", action="store_true", help="only whether answers are right")
    parser.add_argument("--models", type=Path, help="for --answers: folder of the models")
    parser.add_argument(
        "--sets", nargs="*", choices=SETS, default=SETS, help="for --answers (default: all)"
    )
    parser.add_argument(
        "--questions", type=int, default=400, help="for --answers, of each set (default 400)"
    )
    what = "of real servers: a folder, depcache-tiny, or random weights: 30m, 125m"
    parser.add_argument("--model", default="30m", help=what)


def run(args: argparse.Namespace) -> int:
    """Count, print and write; the exit code."""
    if args.answers:
        return _run_answers(args, time.perf_counter())
    if args.data is None:
        raise ConfigError("where are the schemas? Name the folder that holds them with --data")
    started = time.perf_counter()
    if args.ahead:
        return _run_ahead(args, started)
    with tempfile.TemporaryDirectory() as folder:
        files = list(args.join)
        if args.quick and not args.tokens:
            files += run_parts(make_commands(args.data, args.model, Path(folder), args.models))
        joined = join_reports(files, args.data)
    open_set = cache(lambda name: read_sql_set(args.data, name))
    found = simulate(open_set, num_tokens, quick=args.quick)
    print(to_text(found.tokens), file=sys.stderr)
    agents = simulate_agents(open_set, num_tokens, quick=args.quick)
    print(agents_to_text(agents), file=sys.stderr)
    wide = simulate_wide(open_set, num_tokens, quick=args.quick)
    print(wide_to_text(wide), file=sys.stderr)
    print("\n".join([served_to_text(joined["tokens"]), *joined["notes"]]), file=sys.stderr)
    joined["tokens"] = [*found.tokens, *joined["tokens"]]
    report = {"better": "lower", "sets": found.sets, **joined, "agents": agents, "wide": wide}
    report |= {"characters_per_token": CHARS_PER_TOKEN}
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


def _run_ahead(args: argparse.Namespace, started: float) -> int:
    tables = read_sql_set(args.data, "bird")
    questions = tables.questions[:: 10 if args.quick else 1]
    with tempfile.TemporaryDirectory() as folder:
        found = measure_ahead(tables, find_model(args.model), Path(folder), questions)
    print(ahead_to_text(found), file=sys.stderr)
    report = {"better": "lower", "ahead": found, "model": args.model}
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


def _run_answers(args: argparse.Namespace, started: float) -> int:
    if args.models is None or not any(args.models.glob("*/config.json")):
        raise ConfigError(
            f"--models is {str(args.models)!r}, which holds no models: name a folder that "
            "`python -m models.tiny.train_tables` has written"
        )
    if args.questions < 1:
        raise ConfigError(f"--questions is {args.questions}: use a number from 1 on")
    number = min(args.questions, NUM_QUICK) if args.quick else args.questions
    sets = {name: make_set(name, number, args.data) for name in args.sets}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_answers(args.models, sets, Path(folder))
    print(answers_to_text(rows), file=sys.stderr)
    asked = sets.get(MADE_UP, [])[:NUM_FORCED]
    agreement = measure_agreement(args.models, asked) if asked else []
    print(agreement_to_text(agreement), file=sys.stderr)
    report = {"better": "higher", "quality": rows, "agreement": agreement}
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


def answers_to_text(rows: list[dict[str, Any]]) -> str:
    """Shares of right answers in %, as a table."""
    lines = [f"{'trained':12}{'read':12}{'set':14}right, 95 %          lost against flat, 95 %"]
    for row in rows:
        line = f"{row['model']:12}{row['mode']:12}{row['set']:14}"
        line += f"{row['executes']:6.1%} ({row['low']:.1%} to {row['high']:.1%})"
        if "lost" in row:
            line += f"  {row['lost']:+6.1%} ({row['lost_low']:+.1%} to {row['lost_high']:+.1%})"
        if "join_em" in row:
            line += f"  joins {row['join_em']:.1%} of {row['joined']}"
        if "warm_same" in row:
            line += f"  warm as cold {row['warm_same']:.1%}"
        lines.append(line)
    return "\n".join(lines)


def agreement_to_text(rows: list[dict[str, Any]]) -> str:
    """How near each mode is to ordinary attention with the same weights, as a table."""
    lines = [f"{'trained':12}{'read':18}{'KL, nats':>10}{'same, %':>9}{'whole, %':>10}"]
    for row in rows:
        line = f"{row['model']:12}{row['mode']:18}{row['kl']:10.3f}"
        lines.append(f"{line}{100 * row['agree']:9.1f}{100 * row['whole']:10.1f}")
    return "\n".join(lines) if rows else ""


def ahead_to_text(found: dict[str, Any]) -> str:
    """What came of it, in lines."""
    ahead = found["ahead"]
    lines = [
        f"{found['set']}: {found['tables']} tables ahead in {ahead['seconds']} s, "
        f"{ahead['computed']:,} tokens computed, {ahead['cached']:,} found"
    ]
    for name in ("asked", "restarted"):
        asked = found[name]
        lines.append(
            f"{name}: {asked['questions']} questions miss {asked['missed']:,} of "
            f"{asked['context']:,} tokens of their contexts, {asked['loaded']:,} came from a tier"
        )
    return "\n".join(lines)


@cache
def num_tokens(text: str) -> int:
    """About how many tokens a text is."""
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def to_text(rows: list[dict[str, Any]]) -> str:
    """The tokens to compute for a question, task included, as a table."""
    cells: dict[str, dict[str, float]] = {}
    for row in rows:
        cells.setdefault(row["set"], {})[row["system"]] = row["prefill"]
    return _to_text("tokens a question", list(cells.items()))


def served_to_text(rows: list[dict[str, Any]]) -> str:
    """What is counted of a stream beside what the servers said, as a table; "" for no rows."""
    names = ("prefill", "by_token", "served")
    lines = [" ".join(["tokens a question".ljust(48), *(f"{name:>10}" for name in names), "off"])]
    for row in rows:
        cells = (f"{row[name]:10,.0f}" for name in names)
        said = f"{row['set']}, {row['system']}, {row['phase']}"
        lines.append(" ".join([said.ljust(48), *cells, f"{row['off']:+.1%}"]))
    return "\n".join(lines) if rows else ""


def agents_to_text(rows: list[dict[str, Any]]) -> str:
    """The tokens to compute for all calls about a question, as a table."""
    places = ("instructions_first", "tables_first")
    cells = [(f"{row['set']}, {place}", row[place]) for row in rows for place in places]
    return _to_text("agents, tokens a question", cells)


def wide_to_text(rows: list[dict[str, Any]]) -> str:
    """The tokens of the tables to compute for a question, as a table."""
    cells = [(row["set"] + ", wide" * row["wide"], row["computed"]) for row in rows]
    return _to_text("some columns, tokens a question", cells, WIDE_SYSTEMS)


def _to_text(
    title: str, rows: list[tuple[str, dict[str, float]]], systems: tuple[str, ...] = SYSTEMS
) -> str:
    width = max(len(title), *(len(name) for name, _ in rows))
    lines = [" ".join([title.ljust(width), *(f"{name:>17}" for name in systems)])]
    for name, tokens in rows:
        cells = (f"{tokens[system]:17,.0f}" for system in systems)
        lines.append(" ".join([name.ljust(width), *cells]))
    return "\n".join(lines)
