# SPDX-License-Identifier: Apache-2.0
"""What a table sees, against the closures of networkx; what is absent, against a count by hand."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx as nx
import pytest

from depcache.errors import PromptError
from depcache.tables import Catalog, Table
from depcache.tables.seen import SEES, count_absent, read_sees, see
from tests.depcache.tables.shop import REFERENCES

SHOP = Catalog(Table(name, f"CREATE TABLE {name}", to) for name, to in REFERENCES.items())


def test_what_is_seen_directly_and_through_others_is_the_closure_within_the_prompt() -> None:
    draw = random.Random(3)
    for _ in range(500):
        names = [f"t{n}" for n in range(draw.randint(1, 12))]
        catalog = Catalog(
            Table(name, name, tuple(draw.choices([*names, "gone"], k=draw.randint(0, 3))))
            for name in names
        )
        here = draw.sample(names, draw.randint(1, len(names)))
        graph = nx.DiGraph()
        graph.add_nodes_from(here)
        for name, seen in see(catalog, here, "references").items():
            assert name not in seen and set(seen) <= set(here) and seen == sorted(set(seen))
            graph.add_edges_from((name, other) for other in seen)
        for name in here:
            expected = (set(catalog.references.closure([name])) & set(here)) - {name}
            assert nx.descendants(graph, name) == expected


def test_a_long_chain_names_each_table_once() -> None:
    names = [f"t{n}" for n in range(4000)]
    tables = [Table(b, b, (a,)) for a, b in pairwise(names)]
    catalog = Catalog([Table("t0", "t0"), *tables])
    assert sum(map(len, see(catalog, names, "references").values())) == 3999


def test_nothing_sees_nothing_and_a_component_is_a_chain() -> None:
    names = ("artist", "album", "track", "opening_hour")
    assert see(SHOP, names, "nothing") == {}
    assert see(SHOP, names, "component") == {"album": ["artist"], "track": ["album"]}


def test_references_that_lead_out_of_the_prompt_are_counted() -> None:
    assert count_absent(SHOP, ["track", "album"]) == 2  # of genre and artist
    assert count_absent(SHOP, ["employee"]) == 0  # itself
    assert count_absent(Catalog([Table("a", "A", ("gone", "lost"))]), ["a"]) == 2


def test_an_unknown_word_is_refused() -> None:
    assert [read_sees(each) for each in SEES] == list(SEES)
    with pytest.raises(PromptError, match="sees is 'all'"):
        read_sees("all")
