# SPDX-License-Identifier: Apache-2.0
"""Streams of text-to-SQL prompts for the simulator: the workloads of `eval.tables`.

Each table is computed alone and is a tree of its own, as the paper of TableCache has whole tables
on the device or not. Questions come in an order drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from depcache.prompt.tokenization import PromptTokenizer
from eval.policy.prepared import Prepared
from eval.tables.prompts import KINDS, choose, read_form
from eval.tables.sets import PARTS, file_of, read_sql_set

SYSTEM = "Write the SQL that answers the question."


def is_table_stream(kind: str) -> bool:
    """Whether a workload of that name is one of tables."""
    return kind.split(":")[0] in KINDS


def files_of(folder: Path, kind: str) -> list[Path]:
    """The files that a stream is made of."""
    return [
        file_of(folder, part, name)
        for part in PARTS[read_form(kind).set_name]
        for name in ("schemas", "questions")
    ]


def prepare_tables(
    folder: Path,
    kind: str,
    num_requests: int,
    seed: int,
    make_tokenizer: Callable[[Iterable[str]], PromptTokenizer],
) -> Prepared:
    """The stream of that name, at most `num_requests` questions of it.

    make_tokenizer  gets the texts, to learn from them if it does
    """
    form = read_form(kind)
    data = read_sql_set(folder, form.set_name)
    rng = random.Random(seed)
    questions = rng.sample(data.questions, len(data.questions))[:num_requests]
    tokenizer = make_tokenizer([*(table.text for table in data.catalog), SYSTEM])
    encoded = tokenizer.encode_elements([f"\n{table.text}" for table in data.catalog])
    tokens = dict(zip(data.catalog.names, map(list, encoded), strict=True))
    return Prepared.make(
        tokenizer.encode_text(SYSTEM, first=True),
        ([tokens[name] for name in choose(data, each, form, rng)] for each in questions),
    )
