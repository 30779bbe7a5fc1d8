# SPDX-License-Identifier: Apache-2.0
"""The cache of neighbourhoods: bounded, of one version, and never a sample for the whole."""

from __future__ import annotations

from depcache.graph.base import Edge, Neighbourhood
from depcache.graph.neighbour_cache import NeighbourCache


def near(num_edges: int, kept: int | None = None) -> Neighbourhood:
    edges = tuple(Edge("r", True, f"n{i}") for i in range(num_edges if kept is None else kept))
    return Neighbourhood(edges, num_edges, kept is not None)


def test_it_holds_no_more_than_it_may_and_forgets_the_oldest_first() -> None:
    cache = NeighbourCache(max_edges=100)
    cache.find(1, [], None)
    for number in range(50):
        cache.keep(1, {f"e{number}": near(9)}, None)
        assert cache.num_edges <= 100
    assert set(cache.find(1, [f"e{i}" for i in range(50)], None)) == {
        f"e{i}" for i in range(40, 50)
    }
    cache.keep(1, {"huge": near(1000)}, None)
    assert cache.find(1, ["huge"], None) == {}
    nothing = NeighbourCache(max_edges=0)
    nothing.find(1, [], None)
    nothing.keep(1, {"a": near(1), "b": near(0)}, None)
    assert nothing.find(1, ["a", "b"], None) == {}


def test_another_version_finds_nothing_and_late_answers_are_not_kept() -> None:
    cache = NeighbourCache()
    cache.find(1, ["a"], None)
    cache.keep(1, {"a": near(2)}, None)
    assert cache.find(1, ["a"], None) == {"a": near(2)}
    assert cache.find(2, ["a"], None) == {}
    cache.keep(1, {"a": near(2)}, None)
    assert cache.find(2, ["a"], None) == {}


def test_a_sample_serves_its_own_bound_and_the_whole_every_bound_it_fits() -> None:
    cache = NeighbourCache()
    cache.find(1, [], None)
    cache.keep(1, {"hub": near(50, kept=10)}, 10)
    assert cache.find(1, ["hub"], 10) == {"hub": near(50, kept=10)}
    assert cache.find(1, ["hub"], 20) == cache.find(1, ["hub"], None) == {}
    cache.keep(1, {"hub": near(50)}, None)
    assert cache.find(1, ["hub"], 50) == cache.find(1, ["hub"], None) == {"hub": near(50)}
    assert cache.find(1, ["hub"], 10) == {"hub": near(50, kept=10)}
    cache.clear()
    assert cache.find(1, ["hub"], 10) == {} and cache.num_edges == 0
