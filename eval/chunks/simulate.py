# SPDX-License-Identifier: Apache-2.0
"""Tokens that are computed for streams of chunks: by a prefix cache, and by chunks reused.

    prefix         a request reuses what begins like it, chunk by chunk
    prefix sorted  the same, with the chunks of each request sorted by how often they occur
    chunks r       a chunk that was met is reused wherever it stands; a share r of each chunk but
                   the first is computed again, for which the task is computed twice

`chunks` follows a cost rule. A request is fused where that computes no more than its exact prefix
leaves. Where it computes more, because chunks are missing, it is fused only if reuse is expected
(more than r of the last 1,000 chunks had been met before) and all tokens so far stay within 5 % of
those of a prefix cache that saw the same requests. Else it is plain, and fills a prefix cache.

    served r       the same chunks by the rule that servers have, `depcache.select.cost`
    patches r      the same, where servers keep what they compute again. The share is spent in each
                   chunk by itself, so what is selected of a chunk follows from what begins alike
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from depcache.select import num_selected
from depcache.select.cost import ReuseForecast, choose
from eval.chunks.streams import STREAMS, ChunkSet, Requests, make_stream, read_sets, tokens_of

SYSTEM_TOKENS, TASK_TOKENS = 60, 25
SHARES = (0.0, 0.05, 0.15, 0.3)
NUM_REQUESTS, NUM_QUICK = 2000, 200
BOUNDED_TOKENS = 100_000
SLACK = 1.05
WINDOW = 1000


class Lru:
    """Keys with tokens, the least recently used evicted beyond `capacity`; None has no end."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity, self._num_tokens = capacity, 0
        self._lens: OrderedDict[Any, int] = OrderedDict()

    def hit(self, key: Any) -> bool:
        """Whether it is there; it is then the last to go."""
        if key not in self._lens:
            return False
        self._lens.move_to_end(key)
        return True

    def add(self, key: Any, num_tokens: int) -> None:
        """Store it, if it is not there."""
        if key in self._lens:
            return
        self._lens[key] = num_tokens
        self._num_tokens += num_tokens
        while self._capacity is not None and self._num_tokens > self._capacity:
            self._num_tokens -= self._lens.popitem(last=False)[1]


def count_prefix(
    requests: Requests, lens: Mapping[str, int], capacity: int | None = None
) -> list[int]:
    """Tokens that a prefix cache computes for each request."""
    cache = Lru(capacity)
    return [_prefix(cache, request, lens) for request in requests]


def _prefix(cache: Lru, request: Sequence[str], lens: Mapping[str, int], store: bool = True) -> int:
    """Tokens to compute for a plain request; `store` keeps them."""
    computed, way, is_hit = TASK_TOKENS, (), True
    for chunk, length in (("", SYSTEM_TOKENS), *((chunk, lens[chunk]) for chunk in request)):
        way = (*way, chunk)
        is_hit = is_hit and cache.hit(way)
        if not is_hit:
            computed += length
            if store:
                cache.add(way, length)
    return computed


def count_chunks(
    requests: Requests, lens: Mapping[str, int], share: float, capacity: int | None = None
) -> list[int]:
    """Tokens that reuse of chunks computes for each request, under the cost rule."""
    cache, stock = Lru(capacity), Lru(capacity)
    met: set[str] = set()
    recent: deque[bool] = deque(maxlen=WINDOW)
    computed: list[int] = []
    own = theirs = 0
    for request in requests:
        theirs += _prefix(stock, request, lens)
        plain = _prefix(cache, request, lens, store=False)
        missing = [chunk for chunk in request if not cache.hit(_node(chunk))]
        again = sum(ceil(share * lens[chunk]) for chunk in request[1:])
        fused = sum(lens[chunk] for chunk in missing) + again + TASK_TOKENS
        fused += 0 if cache.hit(("",)) else SYSTEM_TOKENS
        if missing or again:
            fused += TASK_TOKENS
        is_expected = bool(recent) and sum(recent) / len(recent) > share
        may_invest = bool(missing) and is_expected and own + fused <= SLACK * theirs
        if fused <= plain or may_invest:
            cache.add(("",), SYSTEM_TOKENS)
            for chunk in missing:
                cache.add(_node(chunk), lens[chunk])
            computed.append(fused)
        else:
            computed.append(_prefix(cache, request, lens))
        own += computed[-1]
        recent.extend(chunk in met for chunk in request)
        met.update(request)
    return computed


def count_served(
    requests: Requests,
    lens: Mapping[str, int],
    share: float,
    capacity: int | None = None,
    *,
    patches: bool = False,
) -> list[int]:
    """Tokens that a server computes for each request, by the rule that it has."""
    cache = Lru(capacity)
    forecast = ReuseForecast()
    computed: list[int] = []
    for request in requests:
        plain = _prefix(cache, request, lens, store=False)
        missing = [0 if cache.hit(_node(chunk)) else lens[chunk] for chunk in request]
        met = forecast.meet([chunk.encode() for chunk in request], [not num for num in missing])
        num_context = SYSTEM_TOKENS + sum(lens[chunk] for chunk in request)
        system = 0 if cache.hit(("",)) else SYSTEM_TOKENS
        selected = [num_selected(share, lens[chunk]) for chunk in request[1:]]
        again = sum(selected) if patches else num_selected(share, num_context - SYSTEM_TOKENS)
        ways = [("patch", *request[:stop]) for stop in range(2, len(request) + 1)]
        if not patches or 0 in selected:
            ways = []
        num_whole = next((row for row, num in enumerate(missing) if num), len(request))
        is_kept = [cache.hit(way) for way in ways[: max(num_whole - 1, 0)]]
        num_patched = sum(num for num, hit in zip(selected, is_kept, strict=False) if hit)
        choice = choose(
            missing=missing,
            num_missing_system=system,
            met=met,
            num_selected=again,
            num_context=num_context,
            num_prefix=num_context + TASK_TOKENS - plain,
            num_task=TASK_TOKENS,
            share=share,
            is_pinned=False,
            num_patched=num_patched if patches else None,
        )
        if not choice.is_fused:
            computed.append(_prefix(cache, request, lens))
            continue
        again -= num_patched
        computed.append(sum(missing) + system + again + TASK_TOKENS + bool(choice.settled))
        if choice.settled:
            cache.add(("",), SYSTEM_TOKENS)
            for row in choice.settled:
                cache.add(_node(request[row]), lens[request[row]])
        # A patch stands behind rows that are reused, all of them.
        for row, way in enumerate(ways, 1):
            if any(num and at not in choice.settled for at, num in enumerate(missing[: row + 1])):
                break
            cache.add(way, selected[row - 1])
    return computed


def _node(chunk: str) -> tuple[str, str]:
    """The key of a chunk right behind the system, where a plain request has its first chunk."""
    return "", chunk


def sort_chunks(requests: Requests) -> Requests:
    """Each request with its chunks sorted, the most frequent of all requests first."""
    counts = Counter(chunk for request in requests for chunk in request)
    return [tuple(sorted(each, key=lambda chunk: (-counts[chunk], chunk))) for each in requests]


def simulate(folder: Path, *, quick: bool = False) -> list[dict[str, Any]]:
    """Rows {"set", "stream", "requests", "prompt", "cache", "system", "share", "to_prefix"}.

    prompt     mean tokens of a prompt
    share      tokens computed by tokens of all prompts
    to_prefix  tokens computed by those of `prefix` with the same cache
    cache      its tokens; None has no end
    """
    number = NUM_QUICK if quick else NUM_REQUESTS
    return [row for each in read_sets(folder) for row in _simulate_set(each, number)]


def _simulate_set(data: ChunkSet, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for stream in STREAMS:
        requests = make_stream(data.requests, stream, number)
        total = tokens_of(requests, data.lens, SYSTEM_TOKENS + TASK_TOKENS)
        for capacity in (None, BOUNDED_TOKENS):
            prefix = sum(count_prefix(requests, data.lens, capacity))
            found = {
                "prefix": prefix,
                "prefix sorted": sum(count_prefix(sort_chunks(requests), data.lens, capacity)),
            }
            for share in SHARES:
                counts = count_chunks(requests, data.lens, share, capacity)
                found[f"chunks {share:g}"] = sum(counts)
                served = partial(count_served, requests, data.lens, share, capacity)
                found[f"served {share:g}"] = sum(served())
                if share:
                    found[f"patches {share:g}"] = sum(served(patches=True))
            rows += [
                {
                    "set": data.name,
                    "stream": stream,
                    "requests": len(requests),
                    "prompt": round(total / len(requests), 1),
                    "cache": capacity,
                    "system": system,
                    "share": round(computed / total, 4),
                    "to_prefix": round(computed / prefix, 4),
                }
                for system, computed in found.items()
            ]
    return rows
