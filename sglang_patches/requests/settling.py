# SPDX-License-Identifier: Apache-2.0
"""The requests that settle rows of a fused one: their KV is in the tree when they are done.

    alone    system | row | row | ...        layout `tree`; a row behind one chunk is below it there
    storing  system | chunk | chunk | row    of which the row is computed, seeing all before it
    scoring  system | row | row | question   as the request itself, with nothing computed again

A row that stands behind several chunks needs these first, each alone, so there are two rounds; and
what scores rows where they stand, or rows that stand behind anything, needs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from depcache.prompt.behind import Behind, Ids, cut_rows, several_of
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import Recompute
from depcache.prompt.wire import WireIds
from depcache.select import ByScore
from sglang_patches.requests.beside import make_beside
from sglang_patches.requests.inner import STORING
from sglang_patches.requests.scoring import SCORING, to_param

SETTLES = "depcache_settles"
"""Attribute of a request that settles another's rows."""

_Part = tuple[IntArray, list[int], list[int]]
"""Tokens, lengths and parents of some segments."""


def make_settling(
    obj: Any,
    tokens: IntArray,
    forest: Forest,
    rows: Sequence[int],
    behind: Behind | None,
    max_tokens: int,
    by_score: ByScore | None = None,
) -> list[list[Any]]:
    """Returns rounds of requests that settle trees `rows` of `obj`, each of one token.

    tokens, forest  of `obj`, a fused request
    behind      what its trees stand behind, which is computed as well where it is missing
    max_tokens  of one request, and more than any single row needs
    by_score    what needs scores. Then the last round is one request that has them in its report
    """
    if by_score is not None and by_score.scorer == "query" and behind is None:
        trees = range(forest.num_trees)
        question = tokens[forest.task_start :]
        part = cut_rows(tokens, forest, trees, None)
        request = _make_alone(obj, tokens, forest, part, question)
        setattr(request, SCORING, to_param(by_score))
        return [[request]]
    several = {row: chunks for row in rows if behind and (chunks := several_of(behind[row]))}
    others = [row for row in rows if row not in several]
    parts = [cut_rows(tokens, forest, others, behind)] if others else []
    chunks = dict.fromkeys(chunk for each in several.values() for chunk in each)
    parts += [(np.array(ids, np.int64), [len(ids)], [-1]) for ids in chunks]
    first = [
        _make_alone(obj, tokens, forest, part)
        for part in _pack(parts, max_tokens - forest.system_len - 2)
    ]
    second = [
        _make_storing(obj, tokens, forest, row, each, number)
        for number, (row, each) in enumerate(several.items())
    ]
    for number, request in enumerate(first[1:], start=1):
        request.rid += f"-{number}"
    last = [] if by_score is None else [_make_scoring(obj, tokens, forest, behind, by_score)]
    return [requests for requests in (first, second, last) if requests]


def ids_params(forest: Forest) -> dict[str, Any]:
    """The keys of the wire for a prompt of these segments."""
    return WireIds(
        depcache_version=2,
        depcache_system_len=forest.system_len,
        depcache_segment_lens=forest.lens.tolist(),
        depcache_segment_parents=forest.parents.tolist(),
    ).to_params()


def _make_alone(
    obj: Any, tokens: IntArray, forest: Forest, part: _Part, question: IntArray | None = None
) -> Any:
    context, lens, parents = part
    question = tokens[:0] if question is None else question
    one = tokens[forest.task_start : forest.task_start + 1]
    prompt = np.concatenate((tokens[: forest.system_len], context, question, one))
    params = ids_params(Forest.make(len(prompt), forest.system_len, lens, parents))
    return _make(obj, "settle", prompt, params)


def _make_storing(
    obj: Any, tokens: IntArray, forest: Forest, row: int, chunks: Sequence[Ids], number: int
) -> Any:
    own, [length], _ = cut_rows(tokens, forest, [row], None)
    one = tokens[forest.task_start : forest.task_start + 1]
    before = [np.array(ids, np.int64) for ids in chunks]
    prompt = np.concatenate((tokens[: forest.system_len], *before, own, one))
    lens = [*map(len, chunks), length]
    part = Forest.make(len(prompt), forest.system_len, lens, [-1] * len(lens))
    request = _make(obj, f"store-{number}", prompt, _reusing(part))
    setattr(request, STORING, True)
    return request


def _make_scoring(
    obj: Any, tokens: IntArray, forest: Forest, behind: Behind | None, by_score: ByScore
) -> Any:
    one = tokens[forest.task_start : forest.task_start + 1]
    stop = forest.num_tokens if by_score.asks_question else forest.task_start
    prompt = np.concatenate((tokens[:stop], one))
    part = Forest.make(len(prompt), forest.system_len, forest.lens, forest.parents)
    request = _make(obj, "score", prompt, _reusing(part, behind))
    setattr(request, SCORING, to_param(by_score))
    return request


def _reusing(forest: Forest, behind: Behind | None = None) -> dict[str, Any]:
    """The keys of the wire for a fused prompt of which nothing is computed again."""
    nothing = Recompute(select="given", selected=(), behind=behind)
    return {**ids_params(forest), "depcache_layout": "sequential", **nothing.to_params()}


def _make(obj: Any, name: str, prompt: IntArray, params: dict[str, Any]) -> Any:
    request = make_beside(
        obj, name, prompt.tolist(), {"max_new_tokens": 1, "custom_params": params}
    )
    setattr(request, SETTLES, True)
    return request


def _pack(parts: Sequence[_Part], max_tokens: int) -> list[_Part]:
    """The same segments in as few parts as hold them in order, none longer than `max_tokens`."""
    packed: list[_Part] = []
    for tokens, lens, parents in parts:
        if packed and len(packed[-1][0]) + len(tokens) <= max_tokens:
            before, known, above = packed.pop()
            moved = [parent if parent < 0 else parent + len(known) for parent in parents]
            packed.append((np.concatenate((before, tokens)), known + lens, above + moved))
        else:
            packed.append((tokens, lens, parents))
    return packed
