# SPDX-License-Identifier: Apache-2.0
"""Closures, units and orders, against a search written another way."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.tables import Table
from depcache.tables.references import ReferenceGraph

# A name -> those it refers to; "?" is no table.
Schema = dict[str, set[str]]


def make(schema: Schema) -> ReferenceGraph:
    return ReferenceGraph(Table(name, name, tuple(to)) for name, to in schema.items())


def reach_ref(schema: Schema, name: str) -> set[str]:
    """The table and all it refers to, by following references until nothing is new."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        if (each := todo.pop()) in schema and each not in seen:
            seen.add(each)
            todo += schema[each]
    return seen


schemas = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh?")), max_size=8
)


@given(schemas)
def test_closures_units_and_components_are_what_a_plain_search_finds(schema: Schema) -> None:
    graph = make(schema)
    reach = {name: reach_ref(schema, name) for name in schema}
    for name in schema:
        assert set(graph.closure([name])) == reach[name]
        assert set(graph.dependents([name])) == {each for each in schema if name in reach[each]}
        (unit,) = [unit for unit in graph.units if name in unit]
        assert list(unit) == sorted(e for e in reach[name] if name in reach[e])
        (component,) = [c for c in graph.components if name in c]
        assert reach[name] <= set(component)
    assert len({frozenset(c) for c in graph.components}) == len(graph.components)
    assert graph.unknown == tuple(sorted((n, t) for n in schema for t in schema[n] - set(schema)))


@given(schemas)
def test_what_a_table_refers_to_comes_first(schema: Schema) -> None:
    graph = make(schema)
    assert sorted(graph.order) == sorted(schema)
    unit_of = {name: number for number, unit in enumerate(graph.units) for name in unit}
    for name, targets in schema.items():
        for target in targets & set(schema):
            assert unit_of[target] <= unit_of[name]


@given(schemas, st.randoms())
def test_no_order_depends_on_how_tables_came(schema: Schema, random) -> None:
    shuffled = list(schema.items())
    random.shuffle(shuffled)
    first, second = make(schema), make(dict(shuffled))
    assert (first.units, first.components) == (second.units, second.components)


def test_of_free_tables_the_smallest_name_comes_first() -> None:
    # c stands in front of b because a refers to it.
    assert make({"b": set(), "a": {"c"}, "c": set(), "d": {"b"}}).order == ("b", "c", "a", "d")


def test_tables_that_refer_to_each_other_are_one_unit() -> None:
    schema = {"head": {"team"}, "team": {"head", "city"}, "city": set(), "game": {"team"}}
    for names in permutations(schema):
        graph = make({name: schema[name] for name in names})
        assert graph.units == (("city",), ("head", "team"), ("game",))
        assert graph.cycles == (("head", "team"),)
        assert graph.closure(["game"]) == ("city", "head", "team", "game")
        assert graph.closure(["head"]) == graph.closure(["team"]) == ("city", "head", "team")


def test_a_reference_to_itself_is_no_edge_and_no_cycle() -> None:
    graph = make({"employee": {"employee"}})
    assert graph.graph.number_of_edges() == 0
    assert graph.cycles == () and graph.unknown == ()
    assert graph.closure(["employee"]) == ("employee",)


def test_a_table_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        make({"a": set()}).sort(["b"])
    assert make({}).order == ()
