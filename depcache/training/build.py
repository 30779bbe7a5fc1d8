# SPDX-License-Identifier: Apache-2.0
"""Training examples from the graph side: the paths that retrieval finds for each question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError, shorten
from depcache.graph.retrieval import Retriever
from depcache.text_file import read_text
from depcache.training.examples import Example


def build_examples(
    retriever: Retriever,
    questions: Path,
    *,
    num_hops: int | None = None,
    num_paths: int | None = None,
) -> Iterator[Example]:
    """One example for each line of a JSONL file of questions and answers.

    questions  objects with `question` and `answer`, or `answers`, a list of which the first is
               taught and the others are as right; with `entities`, a list, those are looked up
               instead of the question

    A question without any path stays, with none: that too is to be learned. Raises ConfigError
    with the number of a line that cannot be used.
    """
    lines = read_text(questions, ConfigError).split("\n")  # a text may hold U+2028
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            question, answers, entities = _read(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{questions}, line {number}: {error}") from None
        found = retriever.retrieve(
            question, num_hops=num_hops, num_paths=num_paths, entities=entities
        )
        yield Example(question, tuple(found.paths), answers[0], tuple(answers[1:]))


def _read(data: Any) -> tuple[str, list[str], list[str] | None]:
    if not isinstance(data, dict):
        raise ConfigError(f"{shorten(data)} is no question: use an object")
    answers = [data.get("answer")]
    if answers == [None] and isinstance(data.get("answers"), list) and data["answers"]:
        answers = data["answers"]
    question = _text("question", data.get("question"))
    texts = [_text("answer", answer) for answer in answers]
    entities = data.get("entities")
    if entities is not None and not (
        isinstance(entities, list) and all(isinstance(entity, str) for entity in entities)
    ):
        raise ConfigError(f"'entities' is {shorten(entities)}: it must be a list of names")
    return question, texts, entities


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name!r} is {shorten(value)}: it must be some text")
    return value
