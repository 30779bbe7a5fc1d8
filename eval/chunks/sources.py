# SPDX-License-Identifier: Apache-2.0
"""KV of chunks that were computed behind something: the chunk before, similar ones, a past prompt.

previous     behind the chunk before it, which was computed alone
similar      behind its most similar chunks, each computed alone, the most similar last
             (FusionRAG, eq. 10; tf-idf of tokens stands in for its embedding model)
cache-craft  as some past prompt left it, in which the chunks stood in another order; of several
             such copies the one of least CFO is taken (Cache-Craft, section 3)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from depcache.select.cachecraft import (
    adjusted_overlap,
    contextuality,
    fix_overhead,
    num_to_fix,
)
from depcache.select.query import choose_top_of_chunks
from eval.chunks.oracle import Cached, IntArray, Question
from eval.chunks.reader import KV, attention_of, join, take

NUM_SIMILAR = 3
NUM_PROMPTS = 3


def previous(question: Question) -> Cached:
    """Each chunk but the first behind the one before it."""
    num = question.written.forest.num_segments
    return behind(question, [[chunk - 1] if chunk else [] for chunk in range(num)])


def similar(question: Question, number: int = NUM_SIMILAR) -> Cached:
    """Each chunk behind the `number` chunks of its prompt that are most like it."""
    counts = _token_counts(question)
    vectors = [_weigh(each, counts) for each in counts]

    def likeness(one: int, other: int) -> float:
        a, b = vectors[one], vectors[other]
        return sum(weight * b.get(token, 0.0) for token, weight in a.items())

    num = len(vectors)
    ranked = [
        sorted((d for d in range(num) if d != c), key=lambda d, c=c: -likeness(c, d))[:number]
        for c in range(num)
    ]
    return behind(question, [neighbours[::-1] for neighbours in ranked])


def _token_counts(question: Question) -> list[dict[int, int]]:
    counts: list[dict[int, int]] = []
    for span in _spans(question):
        tokens, numbers = np.unique(question.written.tokens[span], return_counts=True)
        counts.append(dict(zip(tokens.tolist(), numbers.tolist(), strict=True)))
    return counts


def _weigh(counts: dict[int, int], everywhere: Sequence[dict[int, int]]) -> dict[int, float]:
    """tf-idf of one chunk among all, as a unit vector."""
    found = {
        token: number * log((len(everywhere) + 1) / sum(token in each for each in everywhere))
        for token, number in counts.items()
    }
    length = sqrt(sum(weight**2 for weight in found.values())) or 1.0
    return {token: weight / length for token, weight in found.items()}


def _spans(question: Question) -> list[slice]:
    forest = question.written.forest
    return [
        slice(start, stop)
        for start, stop in zip(forest.starts.tolist(), forest.stops.tolist(), strict=True)
    ]


def behind(question: Question, neighbours: Sequence[Sequence[int]]) -> Cached:
    """Each chunk behind some others, of which the KV computed alone is used.

    neighbours  for each chunk the numbers of those before it, in their order
    """
    alone, written, reader = question.alone, question.written, question.reader
    start, spans = written.forest.system_len, _spans(question)
    parts, homes = [take(alone.kv, slice(0, start))], [alone.home[:start]]
    for span, others in zip(spans, neighbours, strict=True):
        if not others:
            parts.append(take(alone.kv, span))
            homes.append(alone.home[span])
            continue
        before, at = [parts[0]], start
        for other in others:
            kv, length = take(alone.kv, spans[other]), spans[other].stop - spans[other].start
            shifts = at + np.arange(length) - alone.home[spans[other]]
            before.append(reader.turn(kv, shifts))
            at += length
        num = span.stop - span.start
        visible = np.concatenate((np.ones((num, at), bool), np.tri(num, dtype=bool)), 1)
        home = at + np.arange(num)
        done = reader.run(
            written.tokens[None, span], home[None], visible[None], shared=join(before)
        )
        parts.append([(keys[0], values[0]) for keys, values in done.kv])
        homes.append(home)
    return Cached(join(parts), np.concatenate(homes))


@dataclass(frozen=True, eq=False)
class Variant:
    """One chunk as a past prompt left it.

    prefix         chunks before it there, `inter` the attention to each, in mean over heads and
                   layers
    contextuality  its CCI
    outside        (num_tokens,) float64: what each of its tokens gave chunks before it
    kv, home       as in `Cached`, of its tokens
    """

    prefix: tuple[int, ...]
    inter: dict[int, float]
    contextuality: float
    outside: NDArray[np.float64]
    kv: KV
    home: IntArray


def past_prompt(question: Question, order: Sequence[int]) -> dict[int, Variant]:
    """The chunks of a prompt that has them in this order, under full attention."""
    written, reader = question.written, question.reader
    start, spans = written.forest.system_len, _spans(question)
    index = np.concatenate((np.arange(start), *(np.r_[spans[chunk]] for chunk in order)))
    home = np.arange(len(index))
    below = np.tri(len(index), dtype=bool)
    done = reader.run(written.tokens[None, index], home[None], below[None])
    weights = torch.zeros(len(index), len(index))
    for queries, (keys, _) in zip(done.queries, done.kv, strict=True):
        scaling = queries.shape[-1] ** -0.5
        weights += attention_of(queries[0], keys[0], scaling, below).mean(0)
    mean = (weights / len(done.kv)).double().numpy()
    places: dict[int, slice] = {}
    variants: dict[int, Variant] = {}
    at = start
    for chunk in order:
        length = spans[chunk].stop - spans[chunk].start
        place = slice(at, at + length)
        inter = {other: float(mean[place, where].sum()) for other, where in places.items()}
        variants[chunk] = Variant(
            prefix=tuple(places),
            inter=inter,
            contextuality=contextuality(
                list(inter.values()),
                float(np.tril(mean[place, place], -1).sum()),
                [where.stop - where.start for where in places.values()],
                length,
            ),
            outside=mean[place, start:at].sum(1),
            kv=[(keys[0, :, place], values[0, :, place]) for keys, values in done.kv],
            home=home[place],
        )
        places[chunk] = place
        at += length
    return variants


@dataclass(frozen=True, eq=False)
class Crafted:
    """The copies that Cache-Craft takes for a prompt, and what it computes again of them.

    overheads  CFO of each chunk with alpha = 1
    outside    (num_context,) float64, as in `Variant`
    """

    cached: Cached
    overheads: tuple[float, ...]
    outside: NDArray[np.float64]
    lens: tuple[int, ...]
    start: int

    def choose(self, share: float) -> IntArray:
        """Indices in the prompt; alpha is the largest that chooses no more than the share."""
        low, high = 0.0, 100.0
        for _ in range(40):
            middle = (low + high) / 2
            fits = sum(self._budgets(middle)) <= share * sum(self.lens)
            low, high = (middle, high) if fits else (low, middle)
        return self.start + choose_top_of_chunks(self.outside, self.lens, self._budgets(low))

    def _budgets(self, alpha: float) -> list[int]:
        return [
            num_to_fix(min(1.0, alpha * overhead), length)
            for overhead, length in zip(self.overheads, self.lens, strict=True)
        ]


def cache_craft(question: Question, seed: int = 0, number: int = NUM_PROMPTS) -> Crafted:
    """The best copies of `number` past prompts with the same chunks in random orders."""
    rng, forest = random.Random(seed), question.written.forest
    num = forest.num_segments
    prompts = [past_prompt(question, rng.sample(range(num), num)) for _ in range(number)]
    parts = [take(question.alone.kv, slice(0, forest.system_len))]
    homes, overheads, outside = [question.alone.home[: forest.system_len]], [], []
    for chunk in range(num):
        found = [
            (_overhead(variants[chunk], range(chunk)), at) for at, variants in enumerate(prompts)
        ]
        overhead, at = min(found)
        best = prompts[at][chunk]
        parts.append(best.kv)
        homes.append(best.home)
        overheads.append(overhead)
        outside.append(best.outside)
    return Crafted(
        Cached(join(parts), np.concatenate(homes)),
        tuple(overheads),
        np.concatenate(outside),
        tuple(forest.lens.tolist()),
        forest.system_len,
    )


def _overhead(variant: Variant, new: Sequence[int]) -> float:
    overlap = adjusted_overlap(variant.inter, variant.prefix, new)
    return fix_overhead(variant.contextuality, overlap)
