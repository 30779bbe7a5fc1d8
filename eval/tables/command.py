# SPDX-License-Identifier: Apache-2.0
"""What reusing tables saves: `python -m eval tables --data DIR [--quick] --json FILE`.

Counts the tokens of text-to-SQL prompts over the schemas and questions of a folder (see
`eval.tables.sets`), by what is reused (`eval.tables.simulate`): ordinary prefix caches, with the
tables as they come, in the order in which the schema declares them, and by how often they are
asked; and tables that are computed once. Then the same of agents, which ask several times about the
same tables (`eval.tables.agents`). No model answers anything.

    --quick   100 questions of each workload and one order of them instead of three
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from eval.output import about, add_output, write_report
from eval.tables.agents import simulate_agents
from eval.tables.sets import read_sql_set
from eval.tables.simulate import SYSTEMS, simulate

CHARS_PER_TOKEN = 3.6
"""What schemas have in ordinary vocabularies."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="100 questions of each workload, one order")
    parser.add_argument("--data", type=Path, help="folder with NAME_schemas.jsonl, or above it")


def run(args: argparse.Namespace) -> int:
    """Count, print and write; the exit code."""
    if args.data is None:
        raise ConfigError("where are the schemas? Name the folder that holds them with --data")
    started = time.perf_counter()
    open_set = cache(lambda name: read_sql_set(args.data, name))
    rows = simulate(open_set, num_tokens, quick=args.quick)
    print(to_text(rows), file=sys.stderr)
    agents = simulate_agents(open_set, num_tokens, quick=args.quick)
    print(agents_to_text(agents), file=sys.stderr)
    report = {"better": "lower", "tokens": rows, "agents": agents}
    report |= {"characters_per_token": CHARS_PER_TOKEN}
    write_report(report | about(args, time.perf_counter() - started), args.json)
    return 0


@cache
def num_tokens(text: str) -> int:
    """About how many tokens a text is."""
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def to_text(rows: list[dict[str, Any]]) -> str:
    """The tokens to compute for a question, task included, as a table."""
    return _to_text("tokens a question", [(row["workload"], row["prefill"]) for row in rows])


def agents_to_text(rows: list[dict[str, Any]]) -> str:
    """The tokens to compute for all calls about a question, as a table."""
    places = ("instructions_first", "tables_first")
    cells = [(f"{row['workload']}, {place}", row[place]) for row in rows for place in places]
    return _to_text("agents, tokens a question", cells)


def _to_text(title: str, rows: list[tuple[str, dict[str, float]]]) -> str:
    width = max(len(title), *(len(name) for name, _ in rows))
    lines = [" ".join([title.ljust(width), *(f"{name:>16}" for name in SYSTEMS)])]
    for name, tokens in rows:
        cells = (f"{tokens[system]:16,.0f}" for system in SYSTEMS)
        lines.append(" ".join([name.ljust(width), *cells]))
    return "\n".join(lines)
