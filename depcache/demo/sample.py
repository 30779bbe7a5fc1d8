# SPDX-License-Identifier: Apache-2.0
"""The sample graph that ships with DepCache, and the questions it answers."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from importlib.resources import files

_FOLDER = files("depcache").joinpath("demo", "wellknown")


@dataclass(frozen=True, slots=True)
class Question:
    """One question with everything that counts as a right answer."""

    id: str
    text: str
    answers: tuple[str, ...]

    def is_answered_by(self, text: str) -> bool:
        """Whether `text` names a right answer, however it spells capitals and blanks.

        Of a text that says how it got there, what it says at its end counts; see `final_answer`.
        """
        said = f" {_normalize(final_answer(text))} "
        return any(f" {_normalize(answer)} " in said for answer in self.answers)


def final_answer(text: str) -> str:
    """What stands behind the last `Answer:` of a text, or all of it."""
    return text.rpartition("Answer:")[2].strip()


def load_triples() -> list[tuple[str, str, str]]:
    """(subject, relation, object), in the order of the file."""
    lines = _FOLDER.joinpath("triples.tsv").read_text(encoding="utf-8").splitlines()
    rows = csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(subject, relation, obj) for subject, relation, obj in rows]


def load_entities() -> frozenset[str]:
    """The ends of all triples."""
    return frozenset(end for subject, _, obj in load_triples() for end in (subject, obj))


def load_questions() -> list[Question]:
    """All questions, in the order of the file."""
    text = _FOLDER.joinpath("questions.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [Question(row["id"], row["question"], tuple(row["answers"])) for row in rows]


def _normalize(text: str) -> str:
    letters = "".join(letter if letter.isalnum() else " " for letter in text.casefold())
    return " ".join(letters.split())
