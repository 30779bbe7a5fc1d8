# SPDX-License-Identifier: Apache-2.0
"""Relation paths, however a caller has them, as tuples of strings.

A path is `(entity, relation, entity, ...)`. What a list of paths may hold, in any mixture:

    ("Elon Musk", "founded", "SpaceX")                        any list or tuple of strings
    {"subject": s, "predicate": p, "object": o}               or "relation" for "predicate"
    (graph, [node, node, ...])                                a path in a NetworkX graph
    (graph, [(node, node), (node, node, key), ...])           the same by its edges
    a FalkorDB path, edge, or result row that holds just one of them

Names are kept as they are. An edge that a path walks against its direction is written as
`inverse of founded`: the fact stays true when the line is read from left to right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

from depcache.errors import PromptError, shorten

Path = tuple[str, ...]

INVERSE_RELATION = "inverse of "
"""Goes before the relation of an edge that is walked against its direction."""

MAX_PARALLEL_PATHS = 1024
"""Most paths that one list of NetworkX nodes may stand for; parallel edges multiply."""


def read_paths(paths: Iterable[Any]) -> list[Path]:
    """All paths in the given order, duplicates included.

    Raises PromptError with the number (from 0) and the value of the first path that is empty,
    of an unknown kind, or has an element that is no string, blank, or not valid Unicode.
    """
    if isinstance(paths, str | bytes | Mapping) or not isinstance(paths, Iterable):
        raise PromptError(f"paths is {shorten(paths)}: send a list of paths")
    result: list[Path] = []
    for number, item in enumerate(paths):
        # The common case first: 300 of these per prompt.
        if type(item) in (tuple, list) and set(map(type, item)) == {str}:
            result.append(tuple(item))
        else:
            result.extend(_read_item(item, number))
    # One look at each distinct element; only a bad one is then searched for.
    elements: set[str] = set().union(*result)
    if not (all(result) and all(map(str.strip, elements)) and _is_unicode("".join(elements))):
        _raise_bad_element(result)
    return result


def paths_from_networkx(
    graph: Any, nodes: Sequence[Any], *, relation: str = "relation", name: str = "name"
) -> list[Path]:
    """The path along `nodes` of a NetworkX graph as elements; several if edges are parallel.

    graph     Graph, DiGraph, MultiGraph or MultiDiGraph
    nodes     nodes of a path, or its edges as `(u, v)` or `(u, v, key)` in walking order
              (what `nx.all_simple_paths` and `nx.all_simple_edge_paths` yield)
    relation  edge attribute with the relation; then "label", then a string edge key
    name      node attribute with the entity's name; without it, `str(node)`

    Raises PromptError when a node or an edge is missing or an edge has no relation.
    """
    steps: list[tuple[Any, ...]]
    if nodes and all(isinstance(node, tuple) and node not in graph for node in nodes):
        steps = [tuple(edge) for edge in nodes]
        for edge in steps:
            if len(edge) not in (2, 3):
                raise PromptError(f"{shorten(edge)} is no edge: use (u, v) or (u, v, key)")
        for before, after in pairwise(steps):
            if before[1] != after[0]:
                raise PromptError(
                    f"edge {shorten(after)} does not start where {shorten(before)} ends"
                )
        nodes = [steps[0][0], *(edge[1] for edge in steps)]
    else:
        steps = list(pairwise(nodes))
    for node in nodes:
        if node not in graph:
            raise PromptError(f"{shorten(node)} is no node of the graph: check the path")
    if not nodes:
        return [()]
    names = [str(graph.nodes[node].get(name, node)) for node in nodes]
    choices = [_networkx_relations(graph, step, relation) for step in steps]
    if prod(map(len, choices)) > MAX_PARALLEL_PATHS:
        raise PromptError(
            f"parallel edges make more than {MAX_PARALLEL_PATHS} paths of {shorten(names)}: "
            "send the edges with their keys"
        )
    return [
        (names[0], *(part for pair in zip(relations, names[1:], strict=True) for part in pair))
        for relations in product(*choices)
    ]


def _networkx_relations(graph: Any, step: tuple[Any, ...], relation: str) -> list[str]:
    """The distinct relations of the edges that a step may take, in the graph's order."""
    u, v, *key = step
    prefix = ""
    if not graph.has_edge(u, v, *key):
        if not (graph.is_directed() and graph.has_edge(v, u, *key)):
            raise PromptError(f"the graph has no edge {shorten(step)}: check the path")
        prefix, (u, v) = INVERSE_RELATION, (v, u)
    if graph.is_multigraph():
        keyed = {key[0]: graph.edges[u, v, key[0]]} if key else graph.get_edge_data(u, v)
    else:
        keyed = {None: graph.edges[u, v]}
    relations: dict[str, None] = {}
    for edge_key, data in keyed.items():
        text = data.get(relation, data.get("label", edge_key))
        if not isinstance(text, str):
            raise PromptError(
                f"edge ({shorten(u)}, {shorten(v)}) has no relation: set its attribute "
                f"{relation!r} or 'label' to a string"
            )
        relations[prefix + text] = None
    return list(relations)


def _read_item(item: Any, number: int) -> list[Path]:
    """One entry of the list, which is not simply a list of `str`."""
    try:
        if isinstance(item, Mapping):
            return [_read_triple(item)]
        if _is_graph_path(item):
            return [_read_graph_path(item)]
        if _is_graph_edge(item):
            return [_read_graph_edge(item)]
        if isinstance(item, list | tuple):
            if len(item) == 1 and (_is_graph_path(item[0]) or _is_graph_edge(item[0])):
                return _read_item(item[0], number)
            if len(item) == 2 and hasattr(item[0], "get_edge_data"):
                return paths_from_networkx(item[0], item[1])
            if all(isinstance(element, str) for element in item):
                return [tuple(str(element) for element in item)]
            element = next(element for element in item if not isinstance(element, str))
            raise PromptError(f"the element {shorten(element)} of {shorten(item)} is no string")
    except PromptError as error:
        raise PromptError(f"path {number}: {error}") from None
    hint = "wrap a single path in a list" if isinstance(item, str) else "see depcache.prompt.paths"
    raise PromptError(f"path {number} is {shorten(item)}: send a list of strings ({hint})")


def _read_triple(item: Mapping[Any, Any]) -> Path:
    predicate = item.get("predicate", item.get("relation"))
    triple = (item.get("subject"), predicate, item.get("object"))
    if not all(isinstance(element, str) for element in triple):
        raise PromptError(
            f'{shorten(dict(item))} is no triple: send strings for "subject", "predicate" '
            '(or "relation") and "object"'
        )
    return tuple(str(element) for element in triple)


# FalkorDB's classes are known by what they have, so that the client need not be installed.


def _is_graph_path(item: Any) -> bool:
    return callable(getattr(item, "nodes", None)) and callable(getattr(item, "edges", None))


def _is_graph_edge(item: Any) -> bool:
    return all(hasattr(item, name) for name in ("relation", "src_node", "dest_node"))


def _read_graph_path(path: Any) -> Path:
    nodes, edges = list(path.nodes()), list(path.edges())
    if len(nodes) != len(edges) + 1:
        raise PromptError(f"a path with {len(nodes)} nodes and {len(edges)} edges is no path")
    elements = [_node_name(nodes[0])]
    for edge, (source, target) in zip(edges, pairwise(nodes), strict=True):
        ends = _node_id(edge.src_node), _node_id(edge.dest_node)
        here, there = _node_id(source), _node_id(target)
        if ends == (here, there):
            prefix = ""
        elif ends == (there, here):
            prefix = INVERSE_RELATION
        else:
            raise PromptError(
                f"the edge {shorten(edge.relation)} from {ends[0]} to {ends[1]} does not join "
                f"the nodes {here} and {there} of its path"
            )
        elements += [f"{prefix}{edge.relation}", _node_name(target)]
    return tuple(elements)


def _read_graph_edge(edge: Any) -> Path:
    if isinstance(edge.src_node, int) or isinstance(edge.dest_node, int):
        # What the server sends for an edge alone: the ids of its ends and no names.
        raise PromptError(
            f"the edge {shorten(edge.relation)} knows only the ids of its nodes: "
            "return the path, or the two names and type(edge)"
        )
    return (_node_name(edge.src_node), str(edge.relation), _node_name(edge.dest_node))


def _node_id(node: Any) -> Any:
    """A database id; a node that was never stored is told apart by being itself."""
    if isinstance(node, int):
        return node
    node_id = getattr(node, "id", None)
    return node_id if node_id is not None else f"object {id(node)}"


def _node_name(node: Any) -> str:
    name = (getattr(node, "properties", None) or {}).get("name")
    if not isinstance(name, str):
        raise PromptError(
            f"node {shorten(_node_id(node))} has no property 'name': "
            "return the elements of the path as strings"
        )
    return name


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _raise_bad_element(paths: list[Path]) -> None:
    for number, path in enumerate(paths):
        if not path:
            raise PromptError(f"path {number} is empty: a path has at least one element")
        for element in path:
            if not element.strip():
                raise PromptError(
                    f"path {number} has the blank element {shorten(element)} in "
                    f"{shorten(path)}: every element needs visible text"
                )
            if not _is_unicode(element):
                raise PromptError(
                    f"path {number} has the element {shorten(element)}: "
                    "it holds half a surrogate pair, which is no text"
                )
