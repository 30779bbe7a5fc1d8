# SPDX-License-Identifier: Apache-2.0
"""Data sets in one form: triples, documents, questions with their answers and entities.

    load_folder("data/kg")                     every set of a folder; see `load_kg`
    load_rgb("en_refine.json")                 the user's own copies, which nobody may
    load_multihop_rag("MultiHopRAG.json", ...) pass on: licences are in datasets/README.md
    load_dragonball("dragonball_queries.jsonl", ...)

Needs the standard library only.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Triple = tuple[str, str, str]


class SetError(ValueError):
    """A data set is missing or is not what it should be; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    answers   what counts as right, any of them
    entities  names it mentions, as the set says; empty where it does not
    kind      the set's own type of question, for example "comparison"
    split     the part of the set it is in, for example "dev"; empty where there are no parts
    evidence  triples that lead to the answer, as the set says; empty where it does not
    """

    id: str
    text: str
    answers: tuple[str, ...]
    entities: tuple[str, ...] = ()
    kind: str = ""
    split: str = ""
    evidence: tuple[Triple, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """A set. Of `triples` and `documents` (name to text) one may be empty."""

    name: str
    questions: tuple[Question, ...]
    triples: tuple[Triple, ...] = ()
    documents: tuple[tuple[str, str], ...] = ()

    def entities(self) -> set[str]:
        """The ends of all triples."""
        return {name for head, _, tail in self.triples for name in (head, tail)}


def load_folder(folder: str | Path) -> list[DataSet]:
    """Every set in the folders of `folder` that has triples and questions, by name.

    A folder with several files of questions gives a set for each: `metaqa_1hop`, ...
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SetError(f"{str(folder)!r} is no folder: give the folder that holds the sets")
    found = [data for child in sorted(folder.iterdir()) for data in load_kg(child)]
    if not found:
        raise SetError(f"{str(folder)!r} holds no set: one is a folder with triples and questions")
    return found


def load_kg(folder: Path) -> list[DataSet]:
    """`triples.tsv` or `.tsv.gz` with `questions*.jsonl` or `.jsonl.gz`; nothing otherwise."""
    graphs = [folder / name for name in ("triples.tsv", "triples.tsv.gz")]
    graph = next((path for path in graphs if path.is_file()), None)
    files = sorted([*folder.glob("questions*.jsonl"), *folder.glob("questions*.jsonl.gz")])
    if graph is None or not files:
        return []
    triples = tuple(_read_tsv(graph))
    sets = []
    for path in files:
        suffix = path.name.removesuffix(".gz").removesuffix(".jsonl").removeprefix("questions")
        questions = tuple(question for question, _ in load_questions(path))
        sets.append(DataSet(folder.name + suffix, questions, triples))
    return sets


def load_questions(path: Path) -> list[tuple[Question, dict[str, Any]]]:
    """The questions of `questions.jsonl` or `.jsonl.gz`, each with the row that it is made of."""
    return [
        (
            Question(
                id=str(row.get("id", number)),
                text=row["question"],
                answers=tuple(map(str, row["answers"])),
                entities=tuple(row.get("entities") or ()),
                kind=str(row.get("type") or row.get("path") or ""),
                split=str(row.get("split") or ""),
                evidence=tuple((h, r, t) for h, r, t in row.get("supporting_triples") or ()),
            ),
            row,
        )
        for number, row in read_rows(path, ("question", "answers"))
    ]


def load_rgb(path: str | Path, triples: str | Path | None = None) -> DataSet:
    """RGB (Chen et al., AAAI 2024): `data/en.json` or `en_refine.json`, one object a line.

    triples  a graph extracted from its documents, tab-separated; `depcache graph build` makes one
    """
    questions: list[Question] = []
    documents: dict[str, str] = {}
    for number, row in read_rows(Path(path), ("query", "answer")):
        answers = tuple(dict.fromkeys(_flatten(row["answer"])))
        questions.append(Question(f"rgb-{row.get('id', number)}", row["query"], answers))
        for side in ("positive", "negative"):
            for text in _flatten(row.get(side) or []):
                documents.setdefault(f"rgb-{row.get('id', number)}-{side}-{len(documents)}", text)
    return DataSet("rgb", tuple(questions), _read_graph(triples), tuple(documents.items()))


def load_multihop_rag(
    path: str | Path,
    corpus: str | Path | None = None,
    triples: str | Path | None = None,
    *,
    kind: str | None = "inference_query",
) -> DataSet:
    """MultiHop-RAG (Tang and Yang, 2024): `MultiHopRAG.json` and `corpus.json`, JSON lists.

    kind  the `question_type` to keep, as the DepCache paper does (816); None for all
    """
    questions = tuple(
        Question(
            id=f"multihoprag-{number}",
            text=row["query"],
            answers=(str(row["answer"]),),
            kind=str(row.get("question_type") or ""),
        )
        for number, row in read_rows(Path(path), ("query", "answer"))
        if kind is None or row.get("question_type") == kind
    )
    documents: tuple[tuple[str, str], ...] = ()
    if corpus is not None:
        rows = read_rows(Path(corpus), ("title", "body"))
        documents = tuple((f"{number}: {row['title']}", row["body"]) for number, row in rows)
    return DataSet("multihop_rag", questions, _read_graph(triples), documents)


def load_dragonball(
    path: str | Path,
    corpus: str | Path | None = None,
    triples: str | Path | None = None,
    *,
    language: str = "en",
    kind: str | None = "Summary Question",
) -> DataSet:
    """DragonBall (RAGEval, Zhu et al., 2024): `dragonball_queries.jsonl` and `_docs.jsonl`.

    kind  the part of `query_type` to keep, as the DepCache paper does (533 in English)
    """
    questions: list[Question] = []
    for number, row in read_rows(Path(path), ("query", "ground_truth")):
        query, truth = row["query"], row["ground_truth"]
        query_type = str(query.get("query_type") or "")
        if row.get("language") == language and (kind is None or kind in query_type):
            answers = tuple(_flatten([truth.get("content") or []]))
            identity = f"dragonball-{query.get('query_id', number)}"
            questions.append(Question(identity, query["content"], answers, kind=query_type))
    documents: tuple[tuple[str, str], ...] = ()
    if corpus is not None:
        documents = tuple(
            (str(row.get("doc_id", number)), row["content"])
            for number, row in read_rows(Path(corpus), ("content",))
            if row.get("language") == language
        )
    return DataSet("dragonball", tuple(questions), _read_graph(triples), documents)


def _read_graph(path: str | Path | None) -> tuple[Triple, ...]:
    return () if path is None else tuple(_read_tsv(Path(path)))


def _read_tsv(path: Path) -> Iterator[Triple]:
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        cells = line.rstrip("\r").split("\t")
        if len(cells) == 3 and all(cell.strip() for cell in cells):
            yield cells[0], cells[1], cells[2]
        elif line.strip():
            raise SetError(f"line {number} of {str(path)!r} is no triple: {line[:80]!r}")


def read_rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered objects of a JSON list or of JSON lines; SetError when a needed key is missing."""
    text = _read_text(path)
    try:
        if text.lstrip().startswith("["):
            rows = json.loads(text)
        else:
            # Not splitlines: a text may hold U+2028.
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise SetError(f"{str(path)!r} is no JSON ({error})") from error
    for number, row in enumerate(rows):
        missing = [key for key in needed if not isinstance(row, dict) or key not in row]
        if missing:
            raise SetError(f"row {number} of {str(path)!r} has no {missing[0]!r}: is it this set?")
        yield number, row


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SetError(f"cannot read {str(path)!r} ({error})") from error


def _flatten(value: Any) -> Iterator[str]:
    """All strings of a value that is a string, or a list of such values."""
    if isinstance(value, list):
        for item in value:
            yield from _flatten(item)
    elif value is not None:
        yield str(value)
