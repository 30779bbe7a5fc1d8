# SPDX-License-Identifier: Apache-2.0
"""Every kind of path becomes a tuple of strings, or a sentence that says which one is bad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest

from depcache.errors import PromptError
from depcache.prompt.paths import MAX_PARALLEL_PATHS, paths_from_networkx, read_paths

TRIPLE = ("Elon Musk", "founded", "SpaceX")


class FalkorNode:
    def __init__(self, node_id: int | None, name: Any) -> None:
        self.id = node_id
        self.properties = {} if name is None else {"name": name}


class FalkorEdge:
    def __init__(self, src_node: Any, relation: str, dest_node: Any) -> None:
        self.src_node, self.relation, self.dest_node = src_node, relation, dest_node


class FalkorPath:
    def __init__(self, nodes: list[FalkorNode], edges: list[FalkorEdge]) -> None:
        self._nodes, self._edges = nodes, edges

    def nodes(self) -> list[FalkorNode]:
        return self._nodes

    def edges(self) -> list[FalkorEdge]:
        return self._edges


MUSK, SPACEX, TOWN = (
    FalkorNode(0, "Elon Musk"),
    FalkorNode(1, "SpaceX"),
    FalkorNode(2, "Hawthorne"),
)


def test_lists_triples_and_dicts_mix_in_one_list_in_order():
    paths = [
        list(TRIPLE),
        TRIPLE,
        {"subject": "a", "predicate": "r", "object": "b"},
        {"subject": "a", "relation": "s", "object": "b", "score": 1},
        ["alone"],
        ("a", "r", "b", "s", "c"),
    ]
    assert read_paths(paths) == [
        TRIPLE,
        TRIPLE,
        ("a", "r", "b"),
        ("a", "s", "b"),
        ("alone",),
        ("a", "r", "b", "s", "c"),
    ]


def test_an_iterator_of_paths_and_no_paths_are_fine():
    def generate() -> Iterator[Any]:
        yield TRIPLE

    assert read_paths(generate()) == [TRIPLE]
    assert read_paths([]) == []


def test_subclasses_of_str_become_str():
    class Name(str):
        __slots__ = ()

    [path] = read_paths([(Name("a"), "r", Name("b"))])
    assert path == ("a", "r", "b")
    assert {type(element) for element in path} == {str}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([()], "path 0 is empty"),
        ([TRIPLE, []], "path 1 is empty"),
        ([TRIPLE, ("a", "", "b")], "path 1 has the blank element ''"),
        ([("a", " \n", "b")], "path 0 has the blank element"),
        ([TRIPLE, ("a", 5, "b")], "path 1: the element 5"),
        ([("a", None, "b")], "path 0: the element None"),
        ([("a", ["r"], "b")], "path 0: the element"),
        ([("a", b"r", "b")], "path 0: the element b'r'"),
        ([("a", "\ud800", "b")], "path 0 has the element"),
        (["Elon Musk"], "path 0 is 'Elon Musk'.*wrap"),
        ([5], "path 0 is 5"),
        ([None], "path 0 is None"),
        ([{"subject": "a", "object": "b"}], "path 0: .*no triple"),
        ([{"subject": "a", "predicate": 1, "object": "b"}], "path 0: .*no triple"),
        ("abc", "paths is 'abc'"),
        ({"subject": "a"}, "paths is"),
        (5, "paths is 5"),
        (None, "paths is None"),
    ],
)
def test_a_bad_path_is_refused_with_its_number_and_value(paths, message):
    with pytest.raises(PromptError, match=message) as caught:
        read_paths(paths)
    assert len(str(caught.value)) < 450


def test_a_huge_bad_element_is_not_repeated_in_the_error():
    with pytest.raises(PromptError) as caught:
        read_paths([("a", " " * 10**6, "b")])
    assert len(str(caught.value)) < 450


# NetworkX


@pytest.fixture
def graph() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_edge("Elon Musk", "SpaceX", relation="founded")
    graph.add_edge("SpaceX", "Hawthorne", label="located in")
    return graph


def test_a_networkx_path_reads_relation_then_label(graph):
    nodes = ["Elon Musk", "SpaceX", "Hawthorne"]
    expected = ("Elon Musk", "founded", "SpaceX", "located in", "Hawthorne")
    assert read_paths([(graph, nodes)]) == [expected]
    assert paths_from_networkx(graph, [("Elon Musk", "SpaceX"), ("SpaceX", "Hawthorne")]) == [
        expected
    ]


def test_an_edge_walked_backwards_says_so(graph):
    assert paths_from_networkx(graph, ["SpaceX", "Elon Musk"]) == [
        ("SpaceX", "inverse of founded", "Elon Musk")
    ]


def test_an_undirected_edge_reads_the_same_both_ways(graph):
    undirected = graph.to_undirected()
    assert paths_from_networkx(undirected, ["SpaceX", "Elon Musk"]) == [
        ("SpaceX", "founded", "Elon Musk")
    ]


def test_parallel_edges_make_one_path_each_unless_a_key_chooses():
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", key="likes")
    graph.add_edge("a", "b", key=0, relation="knows")
    graph.add_edge("a", "b", key=1, relation="knows")
    assert paths_from_networkx(graph, ["a", "b"]) == [("a", "likes", "b"), ("a", "knows", "b")]
    assert paths_from_networkx(graph, [("a", "b", "likes")]) == [("a", "likes", "b")]
    assert read_paths([(graph, ["a", "b"])]) == [("a", "likes", "b"), ("a", "knows", "b")]
    assert paths_from_networkx(graph, ["b", "a"])[0] == ("b", "inverse of likes", "a")


def test_what_networkx_yields_is_read():
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", key="r")
    graph.add_edge("b", "c", key="s")
    expected = [("a", "r", "b", "s", "c")]
    [nodes] = nx.all_simple_paths(graph, "a", "c")
    [edges] = nx.all_simple_edge_paths(graph, "a", "c")
    assert read_paths([(graph, nodes)]) == read_paths([(graph, edges)]) == expected


def test_nodes_are_named_by_their_name_or_by_themselves():
    graph = nx.DiGraph()
    graph.add_node(1, name="Ada")
    graph.add_edge(1, 2, relation="knows")
    assert paths_from_networkx(graph, [1, 2]) == [("Ada", "knows", "2")]


def test_a_wrong_networkx_path_is_refused(graph):
    graph.add_edge("SpaceX", "Mars")
    for nodes, message in [
        (["SpaceX", "Nobody"], "no node"),
        (["Elon Musk", "Hawthorne"], "no edge"),
        (["SpaceX", "Mars"], "no relation"),
        ([("Elon Musk", "SpaceX"), ("Elon Musk", "SpaceX")], "does not start"),
        ([], "is empty"),
    ]:
        with pytest.raises(PromptError, match=message):
            read_paths([(graph, nodes)])


def test_parallel_edges_do_not_explode():
    graph = nx.MultiDiGraph()
    for i in range(11):
        for relation in ("r", "s"):
            graph.add_edge(i, i + 1, relation=relation)
    assert len(paths_from_networkx(graph, list(range(11)))) == MAX_PARALLEL_PATHS
    with pytest.raises(PromptError, match="parallel"):
        paths_from_networkx(graph, list(range(12)))


# FalkorDB


def test_a_falkordb_path_keeps_the_direction_of_its_edges():
    path = FalkorPath(
        [SPACEX, MUSK, SPACEX, TOWN],
        [
            FalkorEdge(0, "founded", 1),
            FalkorEdge(0, "founded", 1),
            FalkorEdge(1, "located in", 2),
        ],
    )
    expected = (
        "SpaceX", "inverse of founded", "Elon Musk", "founded", "SpaceX", "located in", "Hawthorne",
    )  # fmt: skip
    assert read_paths([path, [path], TRIPLE]) == [expected, expected, TRIPLE]


def test_a_falkordb_edge_with_its_nodes_and_nodes_without_ids_are_read():
    musk, spacex = FalkorNode(None, "Elon Musk"), FalkorNode(None, "SpaceX")
    edge = FalkorEdge(musk, "founded", spacex)
    assert read_paths([edge, FalkorPath([musk, spacex], [edge])]) == [TRIPLE, TRIPLE]
    assert read_paths([FalkorPath([MUSK], [])]) == [("Elon Musk",)]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (FalkorEdge(0, "founded", 1), "path 0: .*only the ids"),
        (FalkorPath([MUSK, SPACEX], []), "path 0: .*2 nodes and 0 edges"),
        (FalkorPath([MUSK, SPACEX], [FalkorEdge(0, "r", 2)]), "path 0: .*does not join"),
        (FalkorPath([FalkorNode(7, None)], []), "path 0: node 7 has no property 'name'"),
        (FalkorPath([FalkorNode(7, 3)], []), "path 0: node 7 has no property 'name'"),
    ],
)
def test_a_falkordb_object_without_names_is_refused(item, message):
    with pytest.raises(PromptError, match=message):
        read_paths([item])
