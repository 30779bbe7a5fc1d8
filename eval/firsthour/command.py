# SPDX-License-Identifier: Apache-2.0
"""The first hour with a graph nobody tuned to: `python -m eval firsthour --data DIR --json OUT`.

DIR holds `triples.*` of any form that `depcache graph load` reads, and `questions*.jsonl` with
`question`, `answers`, `entities` and `supporting_triples`. `--make DIR` writes three such folders
with names as real graphs have them. For each set the report has

    linked        share of the questions of which every gold entity that they say was linked
    extra_linked  share of the questions that were linked to an entity that is no gold one
    gold_path     share of the questions with a gold path among at most 30 paths an entity
    retrieve_ms   one retrieval, each question once

and, with a real server of depcache-tiny and the command line alone, load_s, ask_ms_own, right,
first_answer_s and what precomputing and a change of the graph did; see `eval.firsthour.user`.
Retrieval was tuned on samples of MetaQA and 2Wiki by seed 0, which are left out here, and on the
hostile graphs of seed 0; those measured are of another seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from depcache.graph.loading import GraphReader
from depcache.graph.retrieval import NUM_PATHS, Retriever
from depcache.graph.stores import open_store
from eval.firsthour.hostile import write_hostile
from eval.firsthour.measures import Set, find_sets, measure
from eval.firsthour.user import live
from eval.output import about, write_report
from eval.retrieval import DEFAULT_SEED, draw_questions
from eval.sets import SetError

NUM_QUESTIONS = 200
NUM_ASKED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, help="folder with a graph and questions")
    what.add_argument("--make", type=Path, help="only write the hostile graphs below this folder")
    parser.add_argument("--json", type=Path, help="file for the report; - is stdout")
    parser.add_argument(
        "--questions",
        type=int,
        default=NUM_QUESTIONS,
        help=f"most questions to retrieve for, 0 for all (default {NUM_QUESTIONS})",
    )
    parser.add_argument(
        "--asked",
        type=int,
        default=NUM_ASKED,
        help=f"of these, questions asked of a real server; 0 starts none (default {NUM_ASKED})",
    )
    parser.add_argument("--sets", nargs="+", default=[], help="only these sets")
    parser.add_argument(
        "--store",
        choices=["falkordblite", "networkx"],
        default="falkordblite",
        help="where retrieval is measured (default falkordblite)",
    )
    parser.add_argument(
        "--pruner", default="words", help="none, words or minilm (default words, as in `ask`)"
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of questions and graphs")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    if args.make is not None:
        write_hostile(args.make, seed=args.seed)
        return 0
    started = time.perf_counter()
    sets = [data for data in find_sets(args.data) if not args.sets or data.name in args.sets]
    if not sets:
        raise SetError(f"{str(args.data)!r} holds none of {', '.join(args.sets)}")
    rows = [_measure_set(data, args) for data in sets]
    report = {"rows": rows, "store": args.store, "pruner": args.pruner, "num_paths": NUM_PATHS}
    report |= {"seed": args.seed}
    write_report(report | about(args, time.perf_counter() - started), args.json or Path("-"))
    return 0


def _measure_set(data: Set, args: argparse.Namespace) -> dict[str, Any]:
    questions = draw_questions(data.questions, args.questions, args.seed)
    row: dict[str, Any] = {"set": data.name, "hops": data.num_hops}
    row["allow_repeats"] = data.allow_repeats
    with tempfile.TemporaryDirectory(prefix="depcache-firsthour-") as folder:
        url = "networkx:" if args.store == "networkx" else f"falkordblite:{folder}/measured.db"
        with open_store(url) as store:
            reader = GraphReader(data.graph)
            store.upsert(reader)
            if aliases := reader.aliases():
                store.add_aliases(aliases)
            row |= measure(data, Retriever(store, pruner=args.pruner), questions)
        if args.asked:
            row |= live(data, questions[: args.asked], Path(folder))
    print({name: row[name] for name in row if name != "misses"}, file=sys.stderr, flush=True)
    return row
