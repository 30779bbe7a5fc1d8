# SPDX-License-Identifier: Apache-2.0
"""What is learned from: questions with the paths or tables they are asked about, and an answer.

One JSON object a line:

    {"question": "Where was Marie Curie born?",
     "paths": [["Marie Curie", "born in", "Warsaw"], ...],
     "answer": "Marie Curie was born in Warsaw."}

Instead of paths there may be "tables", each as a line of a catalog, and the answer is SQL:

     "tables": [{"name": "orders", "text": "CREATE TABLE orders ...", "references": ["shops"]}, ...]

"alternatives" may list other answers that are as right: none of them is held against the model.
Other keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

from depcache.errors import ConfigError, PromptError, shorten
from depcache.prompt.paths import Path, read_paths
from depcache.tables.catalog import Catalog
from depcache.tables.table import Table
from depcache.text_file import reading


@dataclass(frozen=True, slots=True)
class Example:
    """One question, what the model is shown, and what it is to say.

    tables        with names of their own, in the order in which they come; not beside paths
    alternatives  answers that would be as right, as where a question has several
    """

    question: str
    paths: tuple[Path, ...]
    answer: str
    alternatives: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()

    @classmethod
    def from_dict(cls, data: Any) -> Example:
        """From one line of a file; ConfigError when a key is missing or holds something else."""
        if not isinstance(data, dict):
            raise ConfigError(f"{shorten(data)} is no example: use an object with a question")
        for key in ("question", "answer"):
            if not isinstance(data.get(key), str) or not data[key].strip():
                raise ConfigError(
                    f"{key!r} is {shorten(data.get(key))} in an example: it must be some text"
                )
        try:
            paths = tuple(read_paths(data.get("paths", ())))
        except PromptError as error:
            raise ConfigError(f"the paths of an example cannot be used: {error}") from None
        tables = _read_tables(data.get("tables", []))
        if paths and tables:
            raise ConfigError("an example has paths and tables: leave out one of them")
        alternatives = data.get("alternatives", [])
        if not isinstance(alternatives, list) or not all(
            isinstance(each, str) and each.strip() for each in alternatives
        ):
            raise ConfigError(
                f"'alternatives' is {shorten(alternatives)} in an example: it must be a list of "
                "answers"
            )
        return cls(data["question"], paths, data["answer"], tuple(alternatives), tables)

    def to_dict(self) -> dict[str, Any]:
        """One line of a file."""
        line: dict[str, Any] = {
            "question": self.question,
            "paths": [list(path) for path in self.paths],
            "answer": self.answer,
        }
        if self.tables:
            line["tables"] = [table.to_json() for table in self.tables]
        if self.alternatives:
            line["alternatives"] = list(self.alternatives)
        return line


def _read_tables(data: Any) -> tuple[Table, ...]:
    if not isinstance(data, list):
        raise ConfigError(f"'tables' is {shorten(data)} in an example: it must be a list of tables")
    try:
        return tuple(Catalog(map(Table.from_json, data)))
    except PromptError as error:
        raise ConfigError(f"the tables of an example cannot be used: {error}") from None


def read_examples(file: File) -> Iterator[Example]:
    """The examples of a JSONL file; ConfigError with file and line for one that is not usable."""
    with reading(file, ConfigError), file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield Example.from_dict(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{file}, line {number}: {error}") from None


def write_examples(examples: Iterable[Example], file: File) -> int:
    """Write a JSONL file, all of it or nothing; the number of examples."""
    draft = file.with_name(file.name + ".part")
    number = 0
    with draft.open("w", encoding="utf-8") as lines:
        for example in examples:
            lines.write(json.dumps(example.to_dict(), ensure_ascii=False) + "\n")
            number += 1
    draft.replace(file)
    return number
