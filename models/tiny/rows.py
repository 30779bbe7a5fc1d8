# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens that a reader is trained on: strings to copy, and questions about facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

import numpy as np

from depcache.prompt.layout import Layout
from depcache.tables.seen import DEFAULT_SEES
from depcache.training.examples import Example
from depcache.training.packing import Row, make_row, pack
from depcache.training.samples import IGNORED, Attention, Encoder, Sample
from models.tiny import sql_questions
from models.tiny.styles import Styles
from models.tiny.worlds import make_examples

COPY_LEN = 64  # two of them fill a row

COPY_SHARE = 0.04
"""The share of copying in the rows of every stage."""

LAYOUTS: tuple[Layout, ...] = ("tree", "tree", "staggered", "sequential")
_EXAMPLES_SHARE = 0.4  # of the questions are from the given examples
_CHUNK = 256  # examples that are packed together
_MEMORY = 2000  # rows


def copy_rows(
    vocab_size: int, rng: np.random.Generator, row_tokens: int = 2 * COPY_LEN
) -> Iterator[Row]:
    """Rows full of random strings, each said twice; the second time is learned."""
    num = 2 * COPY_LEN
    while True:
        samples: list[Sample] = []
        for _ in range(row_tokens // num):
            tokens = np.tile(rng.integers(4, vocab_size, COPY_LEN), 2)
            labels = tokens.copy()
            labels[:COPY_LEN] = IGNORED
            samples.append(Sample(tokens, np.arange(num), np.full(num, num), 0, labels))
        yield make_row(samples)


def with_copies(rows: Iterator[Row], vocab_size: int, seed: int, row_tokens: int) -> Iterator[Row]:
    """The rows, some copying among them: tokens that few names hold fade else."""
    copies = copy_rows(vocab_size, np.random.default_rng(seed), row_tokens)
    rng = random.Random(seed)
    while True:
        yield next(copies if rng.random() < COPY_SHARE else rows)


def question_rows(
    tokenizer: Any,
    attention: Attention,
    seed: int,
    *,
    row_tokens: int,
    max_paths: int = 30,
    num_questions: int = 6,
    examples: Sequence[Example] = (),
    forbidden: frozenset[str] = frozenset(),
    made_up_relations: float = 0.0,
    other_styles: float = 0.0,
    reuse: int = 1,
) -> Iterator[Row]:
    """Rows of questions about new worlds and of `examples`, without end.

    examples   in any order, those of the same paths behind each other
    forbidden  names that no made-up world has
    made_up_relations  share of made-up worlds that have relations of their own
    other_styles  share of contexts that are written otherwise than by `depcache.render`
    reuse      times that a row comes, on average; a row that comes again is an older one
    """
    encoder = Encoder(
        tokenizer,
        attention,
        LAYOUTS,
        max_tokens=row_tokens,
        seed=seed,
        write=Styles(other_styles, seed) if other_styles else None,
    )
    rng = random.Random(seed)
    natural = sorted({node for example in examples for path in example.paths for node in path[::2]})
    made_up = make_examples(
        seed,
        num_questions=num_questions,
        max_paths=max_paths,
        forbidden=forbidden,
        natural=natural,
        made_up_relations=made_up_relations,
    )
    groups = [list(group) for _, group in groupby(examples, key=lambda each: each.paths)]

    def draw() -> list[Example]:
        chunk: list[Example] = []
        if groups:
            while len(chunk) < _CHUNK * _EXAMPLES_SHARE:
                chunk += rng.choice(groups)
        chunk += islice(made_up, _CHUNK - len(chunk))
        return [_draw_answer(example, rng) for example in chunk]

    yield from _rows_of(encoder, draw, rng, row_tokens, reuse)


def schema_rows(
    tokenizer: Any,
    attention: Attention,
    seed: int,
    *,
    row_tokens: int,
    sees: str = DEFAULT_SEES,
    sizes: tuple[int, int] = (4, 12),
    num_questions: int = 8,
    reuse: int = 1,
) -> Iterator[Row]:
    """Rows of questions about new schemas, without end.

    sees   what a table sees beside itself, where attention is `dependency`
    sizes  tables of a schema, from and to
    reuse  as for `question_rows`
    """
    encoder = Encoder(tokenizer, attention, ("tree",), max_tokens=row_tokens, seed=seed, sees=sees)
    made_up = sql_questions.make_examples(seed, sizes=sizes, num_questions=num_questions)

    def draw() -> list[Example]:
        return [replace(each, answer=f" {each.answer}") for each in islice(made_up, _CHUNK)]

    yield from _rows_of(encoder, draw, random.Random(seed), row_tokens, reuse)


def _rows_of(
    encoder: Encoder,
    draw: Callable[[], list[Example]],
    rng: random.Random,
    row_tokens: int,
    reuse: int,
) -> Iterator[Row]:
    """Rows of what `draw` gives, each `reuse` times on average; one that comes again is older."""
    memory: list[Row] = []
    while True:
        for row in rng.sample(rows := pack(encoder.encode_all(draw()), row_tokens), len(rows)):
            yield row
            yield from rng.choices([*memory, row], k=reuse - 1)
        memory = (memory + rows)[-_MEMORY:]


def _draw_answer(example: Example, rng: random.Random) -> Example:
    """Any of the right answers, the others as alternatives.

    Behind a blank, which this tokenizer puts before every word at the start of a line.
    """
    answers = [f" {answer}" for answer in (example.answer, *example.alternatives)]
    rng.shuffle(answers)
    return replace(example, answer=answers[0], alternatives=tuple(answers[1:]))
