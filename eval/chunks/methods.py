# SPDX-License-Identifier: Apache-2.0
"""All methods of both papers and CacheBlend, on one question cut into chunks of fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from eval.chunks.oracle import MAX_TOKENS, Answer, Cached, Choice, Question
from eval.chunks.reader import Reader
from eval.chunks.rows import make_row
from eval.chunks.selectors import SELECTORS, Selectors
from eval.chunks.sources import cache_craft, previous, similar
from eval.chunks.written import Writer
from eval.quality.prompts import Asked

SHARES = (0.05, 0.15, 0.3)
NOTHING = Choice(np.empty(0, np.int64))


def ask_methods(
    reader: Reader, asked: Asked, max_tokens: int = MAX_TOKENS
) -> Iterator[dict[str, Any]]:
    """The rows of one question, as `eval.chunks.rows` has them, with these methods:

    full, reuse      full attention; each chunk alone, nothing computed again
    a selector       each chunk alone, a share computed again
    previous         chunks behind the one before; with `query` too
    similar          chunks behind similar ones; `fusionrag` is this with `query`
    cache-craft      copies of past prompts, and its own choice of tokens
    """
    written = Writer(reader.tokenizer).write(asked, "cut")
    question = Question(reader, written, max_tokens)

    def row(method: str, placement: str, share: float, answer: Answer) -> dict[str, Any]:
        context = written.forest.context_len
        return make_row(reader, asked, "cut", method, placement, share, context, answer)

    yield row("full", "", 1.0, question.full)
    if not written.forest.context_len:
        return

    def answer(cached: Cached, plans: list[tuple[str, float, Choice]]) -> Iterator[dict[str, Any]]:
        found = question.answer_all(cached, "sequential", [choice for *_, choice in plans])
        for (method, share, _), each in zip(plans, found, strict=True):
            yield row(method, "sequential", share, each)

    [stale] = question.answer_all(question.alone, "not mended", [NOTHING])
    yield row("reuse", "not mended", 0.0, stale)
    selectors = Selectors(question)
    plans = [("reuse", 0.0, NOTHING)]
    plans += [
        (selector, share, Choice(selectors.choose(selector, share, "sequential")))
        for share, selector in product(SHARES, SELECTORS)
    ]
    yield from answer(question.alone, plans)
    for name, cached in (("previous", previous(question)), ("similar", similar(question))):
        chosen = Selectors(question, cached)
        more = "fusionrag" if name == "similar" else f"{name}, query"
        plans = [(name, 0.0, NOTHING)]
        plans += [
            (more, share, Choice(chosen.choose("query", share, "sequential"))) for share in SHARES
        ]
        yield from answer(cached, plans)
    crafted = cache_craft(question)
    plans = [("cache-craft", 0.0, NOTHING)]
    plans += [("cache-craft", share, Choice(crafted.choose(share))) for share in SHARES]
    yield from answer(crafted.cached, plans)
