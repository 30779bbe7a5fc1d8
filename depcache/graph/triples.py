# SPDX-License-Identifier: Apache-2.0
"""Read triples from files: tab-separated or JSON lines, gzipped or not, bad lines counted.

    head<TAB>relation<TAB>tail                                        .tsv .txt
    ["head", "relation", "tail"]                                      .jsonl
    {"subject": "head", "predicate": "relation", "object": "tail"}    .jsonl
    {"head": "head", "relation": "relation", "tail": "tail"}          .jsonl

each also with `.gz`. Text is UTF-8. A tab cannot be part of a name in the first form; JSON
lines have no such limit. Blank lines are skipped and not counted as malformed, and so is a first
line that names the three columns with words as in the last two forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.graph.base import Triple, check_text
from depcache.text_file import open_bytes, reading

SUFFIXES = (".tsv", ".txt", ".jsonl")
MAX_KEPT_PROBLEMS = 20

_HEADS = ("head", "subject", "source")
_RELATIONS = ("relation", "predicate", "label")
_TAILS = ("tail", "object", "target")


@dataclass(slots=True)
class Skipped:
    """What a reader left out.

    count     malformed lines
    problems  "line 7: ..." of the first of them
    """

    count: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, number: int, reason: str) -> None:
        """Note line `number`, counted from 1."""
        self.count += 1
        if len(self.problems) < MAX_KEPT_PROBLEMS:
            self.problems.append(f"line {number}: {reason}")


def read_triples(
    path: str | Path, *, strict: bool = False, skipped: Skipped | None = None
) -> Iterator[Triple]:
    """The triples of a file, one after another, in its order, duplicates included.

    strict   a malformed line raises PromptError with its number; otherwise it is skipped
    skipped  is told of every line that was

    Raises PromptError when the file cannot be read or its suffix is unknown.
    """
    path = Path(path)
    skipped = Skipped() if skipped is None else skipped
    parse = parser_of(path)
    for number, line in _lines(path):
        if not line.strip() or (number == 1 and _is_header(line)):
            continue
        try:
            triple = parse(line)
            for element in triple:
                check_text(element, "it")
        except (PromptError, ValueError, RecursionError) as error:
            if strict:
                raise PromptError(f"line {number} of {str(path)!r} is malformed: {error}") from None
            skipped.add(number, str(error))
            continue
        yield triple


def read_whole(path: Path) -> str:
    """All of a file that is UTF-8, unpacked where its name ends with .gz."""
    with reading(path), open_bytes(path) as file:
        return file.read().decode("utf-8-sig")


def has_triples_suffix(path: str | Path) -> bool:
    """Whether `read_triples` knows the suffix."""
    return _suffix_of(Path(path)) in SUFFIXES


def _suffix_of(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def parser_of(path: Path) -> Callable[[str], Triple]:
    """What reads one line of this file, and raises for one that is no triple."""
    suffix = _suffix_of(path)
    if suffix not in SUFFIXES:
        raise PromptError(
            f"cannot tell the form of {str(path)!r} by its name: "
            f"name it {', '.join(SUFFIXES)}, or one of these with .gz"
        )
    return _parse_json if suffix == ".jsonl" else _parse_tsv


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, split at newlines only: a name may hold U+2028."""
    with reading(path), open_bytes(path) as file:
        for number, raw in enumerate(file, 1):
            # A byte order mark, as spreadsheets write it, is no part of the first name. What
            # is no UTF-8 becomes half a surrogate pair, which `check_text` refuses.
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            yield number, raw.decode("utf-8", "surrogateescape").rstrip("\r\n")


def _is_header(line: str) -> bool:
    cells = [cell.strip().lower() for cell in line.split("\t")]
    return len(cells) == 3 and all(
        cell in names for cell, names in zip(cells, (_HEADS, _RELATIONS, _TAILS), strict=True)
    )


def _parse_tsv(line: str) -> Triple:
    cells = line.split("\t")
    if len(cells) != 3:
        raise PromptError(f"it has {len(cells)} columns, not 3: {shorten(line)}")
    return cells[0].strip(), cells[1].strip(), cells[2].strip()


def _parse_json(line: str) -> Triple:
    value: Any = json.loads(line)
    if isinstance(value, dict):
        value = [
            next((value[key] for key in keys if key in value), None)
            for keys in (_HEADS, _RELATIONS, _TAILS)
        ]
    if not isinstance(value, list) or len(value) != 3:
        raise PromptError(f"it is no triple: {shorten(line)}")
    return value[0], value[1], value[2]
