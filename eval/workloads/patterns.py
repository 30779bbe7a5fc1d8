# SPDX-License-Identifier: Apache-2.0
"""Whom synthetic requests ask about: Uniform, Zipfian or Temporal.

The DepCache paper (section 6.1) draws 10 entities for each query, with up to 30 two-hop paths
each, by three patterns: Uniform, the baseline; Zipfian, a few entities dominate; Temporal,
users ask in sessions, where recent entities are more likely. It gives no parameters; ours are
the arguments below, and belong into every report.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

NUM_ENTITIES = 10


Entities = tuple[str, ...]
"""What one request asks about, each once."""


def make_uniform(
    entities: Sequence[str], *, num_entities: int = NUM_ENTITIES, seed: int = 0
) -> Iterator[Entities]:
    """Endless requests; every entity is equally likely, none twice in one request."""
    pool = _check(entities, num_entities)
    rng = random.Random(seed)
    while True:
        yield tuple(rng.sample(pool, num_entities))


def make_zipfian(
    entities: Sequence[str],
    *,
    skew: float = 1.0,
    num_entities: int = NUM_ENTITIES,
    seed: int = 0,
) -> Iterator[Entities]:
    """Endless requests; the entity of rank k is drawn with weight 1 / k**skew.

    skew  at least 0, which is uniform. Ranks are dealt out at random, by the seed
    """
    if not skew >= 0:
        raise ValueError(f"skew is {skew!r}: choose at least 0")
    pool = _check(entities, num_entities)
    rng = random.Random(seed)
    rng.shuffle(pool)
    weights = list(accumulate(1.0 / rank**skew for rank in range(1, len(pool) + 1)))

    def draw() -> str:
        return rng.choices(pool, cum_weights=weights)[0]

    while True:
        yield _draw_distinct(draw, num_entities, pool, rng)


def make_temporal(
    entities: Sequence[str],
    *,
    num_sessions: int = 8,
    session_len: int = 8,
    reuse: float = 0.7,
    num_entities: int = NUM_ENTITIES,
    seed: int = 0,
) -> Iterator[Entities]:
    """Endless requests of users who talk at the same time, each about what was just talked of.

    num_sessions  sessions that are open at once; every request belongs to a random one
    session_len   mean number of requests of a session, after which a fresh one takes its place
    reuse         share of entities drawn from those of the session; the one used last is the
                  likeliest, each earlier one half as likely as the next. The rest is uniform
    """
    if not 0 <= reuse <= 1 or num_sessions < 1 or session_len < 1:
        raise ValueError(
            f"reuse is {reuse!r}, num_sessions {num_sessions!r}, session_len {session_len!r}: "
            "choose 0 to 1, and at least 1"
        )
    pool = _check(entities, num_entities)
    rng = random.Random(seed)
    sessions: list[list[str]] = [[] for _ in range(num_sessions)]
    while True:
        number = rng.randrange(num_sessions)
        recent = sessions[number]  # least recently used first

        def draw(recent: list[str] = recent) -> str:
            if recent and rng.random() < reuse:
                back = 1
                while back < len(recent) and rng.random() < 0.5:
                    back += 1
                return recent[-back]
            return rng.choice(pool)

        chosen = _draw_distinct(draw, num_entities, pool, rng)
        sessions[number] = [name for name in recent if name not in chosen] + list(chosen)
        yield chosen
        if rng.random() < 1 / session_len:
            sessions[number] = []


KINDS: dict[str, Callable[..., Iterator[Entities]]] = {
    "uniform": make_uniform,
    "zipfian": make_zipfian,
    "temporal": make_temporal,
}


def make_workload(
    kind: str, entities: Sequence[str], num_requests: int, **options: Any
) -> list[Entities]:
    """`num_requests` of a kind; the same arguments give the same requests."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no workload: use {', '.join(KINDS)}")
    return list(islice(KINDS[kind](entities, **options), num_requests))


def _check(entities: Sequence[str], num_entities: int) -> list[str]:
    """The distinct entities, sorted: the requests do not depend on the order given."""
    pool = sorted(set(entities))
    if not 1 <= num_entities <= len(pool):
        raise ValueError(
            f"num_entities is {num_entities!r}: choose 1 to {len(pool)}, all there are"
        )
    return pool


def _draw_distinct(
    draw: Callable[[], str], count: int, pool: Sequence[str], rng: random.Random
) -> tuple[str, ...]:
    """`count` distinct entities in the order drawn.

    After many tries in vain, where the skew leaves next to nothing for the others, the rest is
    uniform.
    """
    chosen: dict[str, None] = {}
    for _ in range(100 * count):
        if len(chosen) == count:
            break
        chosen[draw()] = None
    while len(chosen) < count:
        chosen[rng.choice(pool)] = None
    return tuple(chosen)
