# SPDX-License-Identifier: Apache-2.0
"""Are the right entities linked and a gold path retrieved, and how long does it take?"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import INVERSE_RELATION
from eval.sets import Question, SetError, load_questions

MAX_GOLD_HOPS = 3
Kind = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Set:
    """A graph file and questions about it.

    num_hops       of the longest gold path; 2 where no question has one
    allow_repeats  whether gold paths may come to an entity twice
    """

    name: str
    graph: Path
    questions: tuple[Question, ...]
    num_hops: int
    allow_repeats: bool


def find_sets(folder: Path) -> list[Set]:
    """The sets in a folder: `triples.*` or `graph.*`, and a set for every `questions*.jsonl`."""
    graphs = sorted([*folder.glob("triples.*"), *folder.glob("graph.*")])
    files = sorted([*folder.glob("questions*.jsonl"), *folder.glob("questions*.jsonl.gz")])
    if not graphs or not files:
        raise SetError(
            f"{str(folder)!r} holds no triples.* or no questions*.jsonl: give the folder of one "
            "graph, or make two with --make"
        )
    found: list[Set] = []
    for file in files:
        rows = load_questions(file)
        questions = tuple(question for question, _ in rows)
        repeats = any(row.get("allow_repeats") for _, row in rows)
        told = [int(row["hops"]) for _, row in rows if row.get("hops")]
        chains = [len(kind) for q in questions[:200] for _, kind in gold_kinds(q, repeats)]
        suffix = file.name.removesuffix(".gz").removesuffix(".jsonl").removeprefix("questions")
        hops = max(told or chains or [2])
        found.append(Set(folder.name + suffix, graphs[0], questions, hops, repeats))
    return found


def gold_kinds(question: Question, allow_repeats: bool = False) -> set[tuple[str, Kind]]:
    """Entities and sequences of relations that lead from them to an answer over the evidence.

    The kinds and not the paths: a set may tell only some of the triples of a popular answer.
    """
    around: dict[str, list[tuple[str, str]]] = {}
    for head, relation, tail in question.evidence:
        around.setdefault(head, []).append((relation, tail))
        around.setdefault(tail, []).append((INVERSE_RELATION + relation, head))
    answers = set(question.answers)
    found: set[tuple[str, Kind]] = set()
    # Each triple of the evidence is a step of a chain, where there is one: the shortest chains that
    # use every relation of it are the gold ones.
    wanted = {relation for _, relation, _ in question.evidence}

    def walk(start: str, here: str, kind: Kind, visited: tuple[str, ...]) -> None:
        used = {relation.removeprefix(INVERSE_RELATION) for relation in kind}
        if kind and here in answers and used == wanted:
            found.add((start, kind))
        if len(kind) == MAX_GOLD_HOPS:
            return
        for relation, there in around.get(here, ()):
            if allow_repeats or there not in visited:
                walk(start, there, (*kind, relation), (*visited, there))

    for entity in question.entities:
        walk(entity, entity, (), (entity,))
    shortest = min((len(kind) for _, kind in found), default=0)
    return {item for item in found if len(item[1]) == shortest}


def has_gold(question: Question, paths: Sequence[Kind], allow_repeats: bool) -> bool:
    """Whether a gold path is among the paths, as a whole or as the beginning of one.

    Where no chain of the evidence ends at an answer (a comparison: "yes"), all evidence must be.
    """
    kinds = gold_kinds(question, allow_repeats)
    if kinds:
        answers = set(question.answers)
        return any(
            (path[0], path[1:stop:2]) in kinds and path[stop - 1] in answers
            for path in paths
            for stop in range(3, len(path) + 1, 2)
        )
    return set(question.evidence) <= {edge for path in paths for edge in edges_of(path)}


def edges_of(path: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The triples of a path, as they are in the graph."""
    for head, relation, tail in zip(path[::2], path[1::2], path[2::2], strict=False):
        if relation.startswith(INVERSE_RELATION):
            yield tail, relation.removeprefix(INVERSE_RELATION), head
        else:
            yield head, relation, tail


def is_said(entity: str, text: str) -> bool:
    """Whether a text holds a name letter for letter, but for case, accents and blanks.

    What stands in brackets at the end of a name need not be there. Not the code that links
    entities, on purpose.
    """
    return _squeeze(re.sub(r"\s*\([^()]*\)$", "", entity)) in _squeeze(text)


def _squeeze(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.rpartition("/")[2]).casefold()
    return "".join(letter for letter in plain if letter.isalnum())


def measure(data: Set, retriever: Retriever, questions: Sequence[Question]) -> dict[str, Any]:
    """Shares of the questions and milliseconds; each question is asked once.

    linked        all gold entities that the question says letter for letter were linked
    linked_all    the same of all gold entities, of which sets have some that no question says
    extra_linked  an entity was linked that is no gold one
    gold_path     a gold path is among the paths
    gold_if_said  the same of the questions that say all their gold entities
    """
    retriever.link("")  # names are read once, before any clock runs
    linked: list[bool] = []
    whole: list[bool] = []
    extra: list[bool] = []
    gold: list[bool] = []
    said: list[bool] = []
    times_ms: list[float] = []
    misses: list[str] = []
    for question in questions:
        found = retriever.retrieve(
            question.text, num_hops=data.num_hops, allow_repeats=data.allow_repeats
        )
        times_ms.append(found.timings_ms["total"])
        names = {link.entity for link in found.links}
        wanted = {entity for entity in question.entities if is_said(entity, question.text)}
        linked.append(wanted <= names)
        whole.append(names >= set(question.entities))
        said.append(len(wanted) == len(set(question.entities)))
        extra.append(bool(names - set(question.entities)))
        gold.append(has_gold(question, found.paths, data.allow_repeats))
        if not linked[-1] or extra[-1] or not gold[-1]:
            misses.append(question.text)
    times_ms.sort()
    return {
        "questions": len(questions),
        "linked": _mean(linked),
        "linked_all": _mean(whole),
        "extra_linked": _mean(extra),
        "gold_path": _mean(gold),
        "gold_if_said": _mean([g for g, s in zip(gold, said, strict=True) if s]),
        "said": _mean(said),
        "retrieve_ms": {
            "median": round(statistics.median(times_ms), 2),
            "p95": round(times_ms[int(0.95 * (len(times_ms) - 1))], 2),
        },
        "misses": misses[:20],
    }


def _mean(values: Sequence[bool]) -> float:
    return round(statistics.fmean(values), 4) if values else 0.0
