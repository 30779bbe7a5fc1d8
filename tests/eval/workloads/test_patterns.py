# SPDX-License-Identifier: Apache-2.0
"""Synthetic workloads have the locality they are named for, and repeat by their seed."""

from __future__ import annotations

from collections import Counter

import pytest

from eval.workloads.patterns import KINDS, Entities, make_workload

ENTITIES = [f"e{i}" for i in range(1000)]


def top_share(requests: list[Entities], share: float = 0.2) -> float:
    counts = Counter(name for request in requests for name in request)
    top = sum(count for _, count in counts.most_common(int(len(ENTITIES) * share)))
    return top / sum(counts.values())


def reuse_share(requests: list[Entities], window: int = 20) -> float:
    """Share of entities that one of the last `window` requests had, too."""
    found = total = 0
    for number, request in enumerate(requests):
        recent = {n for r in requests[max(0, number - window) : number] for n in r}
        found += len(recent.intersection(request))
        total += len(request)
    return found / total


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_of_distinct_entities_and_repeat_by_the_seed(kind: str) -> None:
    requests = make_workload(kind, ENTITIES, 200, seed=3)
    assert len(requests) == 200
    for request in requests:
        assert len(set(request)) == 10
        assert set(request) <= set(ENTITIES)
    assert requests == make_workload(kind, list(reversed(ENTITIES)), 200, seed=3)
    assert requests != make_workload(kind, ENTITIES, 200, seed=4)


def test_each_kind_has_the_locality_it_is_named_for() -> None:
    uniform = make_workload("uniform", ENTITIES, 1000)
    zipfian = make_workload("zipfian", ENTITIES, 1000, skew=1.0)
    temporal = make_workload("temporal", ENTITIES, 1000)
    assert top_share(uniform) < 0.35 < 0.6 < top_share(zipfian)
    # Ranks 1..200 of 1,000 hold H(200)/H(1000) = 79 % of a Zipfian; less without repeats.
    assert 0.65 < top_share(zipfian) < 0.82
    assert top_share(temporal) < 0.45
    assert reuse_share(temporal) > 0.4 > 0.25 > reuse_share(uniform)
    assert top_share(make_workload("zipfian", ENTITIES, 1000, skew=0.0)) < 0.35


def test_even_extreme_skew_ends() -> None:
    requests = make_workload("zipfian", ENTITIES, 5, skew=50.0)
    assert all(len(set(request)) == 10 for request in requests)
    assert len(make_workload("temporal", ENTITIES[:10], 5, reuse=1.0)) == 5


def test_wrong_arguments_are_refused() -> None:
    for kind, options in (
        ("poisson", {}),
        ("uniform", {"num_entities": 1001}),
        ("zipfian", {"skew": -1.0}),
        ("zipfian", {"skew": float("nan")}),
        ("temporal", {"reuse": 1.5}),
    ):
        with pytest.raises(ValueError, match=r"use|choose"):
            make_workload(kind, ENTITIES, 1, **options)
