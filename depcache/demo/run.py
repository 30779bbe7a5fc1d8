# SPDX-License-Identifier: Apache-2.0
"""Ask the same questions twice, in two orders, of one server, and add up what it did.

The first pass asks in the order of the file, with the facts in the order of the graph. The
second asks in a shuffled order, with the same facts by their relevance to the question: what
a retriever that ranks would send. A prefix cache finds little of the first pass in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from depcache.client.client import Client
from depcache.demo.sample import Question
from depcache.graph.retrieval import Retriever
from depcache.prompt.layout import Layout
from depcache.prompt.paths import Path
from depcache.prompt.render import render

DEPCACHE = "depcache"
SGLANG = "sglang"
SYSTEMS = (DEPCACHE, SGLANG)

# Facts and a system message that no question of the sample shares anything with.
_WARM_UP_SYSTEM = "Warm up."
_WARM_UP_PATHS = [(f"object {i}", f"stands {i} steps before", f"object {i + 1}") for i in range(40)]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of one pass, with the facts it is sent with."""

    question: Question
    paths: tuple[Path, ...]
    order: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    flat_tokens      prompt tokens as plain text
    prompt_tokens    prompt tokens as the system saw them; of a dependency tree, fewer
    reused_tokens    of `prompt_tokens`, those that were not computed
    ttft_s           seconds from sending to the first token, measured here
    """

    asked: Asked
    text: str
    flat_tokens: int
    prompt_tokens: int
    reused_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What one system did for all questions of both passes; tokens are sums.

    tree_tokens  prompt tokens as trees; for a system without trees, the flat ones
    correct      answers that name a right one
    """

    questions: int
    flat_tokens: int
    tree_tokens: int
    reused_tokens: int
    computed_tokens: int
    ttft_ms_median: float
    correct: int


def make_passes(
    questions: Sequence[Question], retriever: Retriever, *, seed: int
) -> list[list[Asked]]:
    """The two passes over `questions`; the facts of a question are the same in both."""
    first = [Asked(q, tuple(retriever.retrieve(q.text)), 0) for q in questions]
    second = [Asked(q, tuple(retriever.retrieve(q.text, by_relevance=True)), 1) for q in questions]
    random.Random(seed).shuffle(second)
    return [first, second]


def ask_all(
    client: Client,
    passes: Sequence[Sequence[Asked]],
    *,
    system: str,
    layout: Layout = "tree",
    max_tokens: int = 8,
) -> Iterator[Answer]:
    """Ask one after the other, greedily; yields each answer as it is complete.

    system  DEPCACHE sends dependency data, SGLANG the same text without it
    """
    warm_up = render(_WARM_UP_PATHS, "Ready?", system=_WARM_UP_SYSTEM, layout=layout)
    extra = warm_up.extra_body if system == DEPCACHE else {}
    for _ in range(2):  # the second one meets a cache, as most later ones will
        client.chat(warm_up.messages, stream=True, max_tokens=max_tokens, **extra).finish()

    for asked in (asked for one_pass in passes for asked in one_pass):
        prompt = render(asked.paths, asked.question.text, layout=layout)
        extra = prompt.extra_body if system == DEPCACHE else {}
        reply = client.chat(prompt.messages, stream=True, max_tokens=max_tokens, **extra).finish()
        usage = reply.usage
        flat_tokens = usage.prompt_tokens
        if system == DEPCACHE:
            flat_tokens = client.count_tokens(prompt.messages)
        yield Answer(
            asked=asked,
            text=reply.text,
            flat_tokens=flat_tokens,
            prompt_tokens=usage.prompt_tokens,
            reused_tokens=usage.cached_tokens,
            ttft_s=reply.ttft_s or reply.total_s,
        )


def add_up(answers: Sequence[Answer]) -> Figures:
    """The figures of one system."""
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    reused_tokens = sum(answer.reused_tokens for answer in answers)
    return Figures(
        questions=len(answers),
        flat_tokens=sum(answer.flat_tokens for answer in answers),
        tree_tokens=prompt_tokens,
        reused_tokens=reused_tokens,
        computed_tokens=prompt_tokens - reused_tokens,
        ttft_ms_median=round(ttft_ms(answers), 2),
        correct=sum(answer.asked.question.is_answered_by(answer.text) for answer in answers),
    )


def ttft_ms(answers: Sequence[Answer], order: int | None = None) -> float:
    """Median time to first token, milliseconds; of one pass only, if `order` names it."""
    times = [a.ttft_s * 1000 for a in answers if order is None or a.asked.order == order]
    return median(times) if times else 0.0
