# SPDX-License-Identifier: Apache-2.0
"""Bring a graph file up to date with changes that were made in memory: all of them or none.

Lines of a text file that are not concerned stay byte for byte as they are, those that are no
triples too; new triples are written below them. A GraphML file keeps its nodes' and edges'
attributes and is written anew.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import IO, Any

from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph.base import Triple
from depcache.graph.triples import parser_of
from depcache.text_file import open_bytes, reading, replacing

LINE_SUFFIXES = (".tsv", ".txt", ".jsonl")
"""Suffixes of text files that can be added to; each may have `.gz` behind it."""

_COMPRESSION = 6  # 9 takes four times as long, for a hundredth of the size


def require_writable(path: Path) -> None:
    """Raise ConfigError for a graph file of a form that is only read."""
    if not (is_graphml(path) or path.name.lower().removesuffix(".gz").endswith(LINE_SUFFIXES)):
        raise ConfigError(
            f"the graph {str(path)!r} is read-only: load it into a .tsv or a .db and change that"
        )


def is_graphml(path: Path) -> bool:
    """Whether the suffix says so."""
    return path.suffix.lower() == ".graphml"


def check_lines(path: Path, triples: Sequence[Triple]) -> None:
    """Raise PromptError for the first triple that a line of this file could not say."""
    if is_graphml(path):
        return  # the whole file is checked when it is written
    for triple in triples:
        _make_line(path, triple)


def write_changes(path: Path, added: Collection[Triple], removed: Collection[Triple]) -> None:
    """Add triples to a graph file, made if it is not there, and take triples out.

    added    triples that the file does not hold
    removed  triples of which it may hold several copies

    The file is replaced when the new one is safe on the disk, and keeps its permissions. Raises
    PromptError when it cannot be read or cannot hold a name, ConfigError when it cannot be written.
    """
    if is_graphml(path):
        _write_graphml(path, added, set(removed))
    else:
        _write_lines(path, added, set(removed))


def _write_lines(path: Path, added: Collection[Triple], removed: set[Triple]) -> None:
    lines = [_make_line(path, triple) for triple in added]
    with replacing(path) as raw, _packed(raw, path) as out:
        is_ended = True
        for line in _kept_lines(path, removed):
            out.write(line)
            is_ended = line.endswith(b"\n")
        if lines and not is_ended:
            out.write(b"\n")
        out.writelines(lines)


def _kept_lines(path: Path, removed: set[Triple]) -> Iterator[bytes]:
    """The lines of the file that say none of these triples; none where there is no file."""
    if not path.exists():
        return
    parse = parser_of(path)
    with reading(path), open_bytes(path) as file:
        for line in file:
            try:
                text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
                if removed and parse(text.removeprefix("\ufeff")) in removed:
                    continue
            except (PromptError, ValueError, RecursionError, TypeError):
                pass  # no triple, and none of ours to take away
            yield line


def _make_line(path: Path, triple: Triple) -> bytes:
    """A line that is read as this triple; PromptError where there is none."""
    if path.name.lower().removesuffix(".gz").endswith(".jsonl"):
        line = json.dumps(triple, ensure_ascii=False)
    else:
        line = "\t".join(triple)
        # Cells are stripped when they are read, which takes away line breaks at an end, too.
        if (
            any(sign in line for sign in "\n\r")
            or tuple(map(str.strip, line.split("\t"))) != triple
        ):
            raise PromptError(
                f"{shorten(triple)} has a tab, a line break, or a blank at an end, which "
                f"{str(path)!r} cannot store: keep the graph in a .jsonl or a .db"
            )
    return line.encode() + b"\n"


def _packed(raw: IO[bytes], path: Path) -> Any:
    """The stream to write to, which packs if the name ends with .gz; `raw` stays open."""
    if path.name.lower().endswith(".gz"):
        return gzip.open(raw, "wb", _COMPRESSION)
    return nullcontext(raw)


def _write_graphml(path: Path, added: Collection[Triple], removed: set[Triple]) -> None:
    import networkx as nx

    from depcache.graph.networkx_store import read_graphml, triples_of

    old: Any = read_graphml(path) if path.exists() else nx.MultiDiGraph()
    triples = list(triples_of(old))
    # Directed, as its triples are read, and with room for several relations of two nodes.
    graph: Any = nx.MultiDiGraph()
    graph.add_nodes_from(old.nodes(data=True))
    numbers = count()
    for (head, tail, data), triple in zip(old.edges(data=True), triples, strict=True):
        if triple not in removed:
            # NetworkX gives every edge an "id" of its own; a relation may have stood there.
            kept = {name: value for name, value in data.items() if name != "id"}
            if not kept.keys() & {"relation", "label"}:
                kept["relation"] = triple[1]
            graph.add_edge(head, tail, next(numbers), **kept)
    node_of = {str(data.get("name", node)): node for node, data in graph.nodes(data=True)}
    for head, relation, tail in added:
        for name in (head, tail):
            if name not in node_of:
                # What is a name here may be another node's id.
                is_taken = name in graph
                node_of[name] = f"depcache-{next(numbers)}" if is_taken else name
                graph.add_node(node_of[name], **{"name": name} if is_taken else {})
        graph.add_edge(node_of[head], node_of[tail], next(numbers), relation=relation)
    graph.remove_nodes_from([n for n in nx.isolates(graph) if n in old and old.degree(n)])
    with replacing(path) as raw:
        try:
            # Not by lxml: its writer, stopped by a name, ends the process when it is collected.
            nx.write_graphml_xml(graph, raw)
            raw.flush()
            # XML knows no control characters, and turns some line breaks into others.
            is_same = set(triples_of(read_graphml(Path(raw.name)))) == (
                set(triples) - removed | set(added)
            )
        except (TypeError, ValueError, PromptError):
            is_same = False
        if not is_same:
            raise PromptError(
                f"{str(path)!r} cannot hold this graph, because a name has a character that XML "
                "does not allow: keep it in a .jsonl or a .db"
            )
