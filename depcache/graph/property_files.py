# SPDX-License-Identifier: Apache-2.0
"""Read graphs whose nodes have properties: CSV, GraphML, Neo4j's exports, MS GraphRAG's tables.

A node is called by one of its properties (`labels`, `name`, `title`, `label`), else by its
identifier; what else it is called are aliases. An edge is called by its type. Of other properties
nothing is read.

    CSV                  head,relation,tail or source,target,type, ...; comma, semicolon or tab
    Neo4j, APOC          _id,_labels,name,...,_start,_end,_type          apoc.export.csv
                         {"type": "node", "id": ..., "properties": ...}   apoc.export.json
    Neo4j, import tool   personId:ID,name and :START_ID,:END_ID,:TYPE, in the files of a folder
    MS GraphRAG          entities.parquet and relationships.parquet; an edge by its description
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph import triples as triple_files
from depcache.graph.base import Triple, check_text
from depcache.graph.labels import Names, rank_label
from depcache.install_hints import install_command
from depcache.text_file import open_bytes, reading

if TYPE_CHECKING:
    from depcache.graph.loading import Source

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]

HEADS = ("head", "subject", "source", "from", "start", "_start", ":start_id")
TAILS = ("tail", "object", "target", "to", "end", "_end", ":end_id")
RELATIONS = ("relation", "predicate", "type", "_type", ":type", "relationship", "label", "edge")
_LONG_RELATIONS = ("description",)  # what MS GraphRAG says of an edge instead
_TITLES = ("title",)  # MS GraphRAG's and films' names; no relation of a triple says so


def read_csv(source: Source, names: Names) -> Iterator[Triple]:
    """A file, or all files of a folder: the nodes of one may be those of another's edges."""
    names.keeps_identifiers = False
    files = sorted(source.path.glob("*.csv")) if source.path.is_dir() else [source.path]
    for file in files:
        for _, row in _csv_rows(file):
            if not _is_edge(row):
                _add_node(names, _node_id(row), row, source.labels)
    return (triple for file in files for triple in _edges(_csv_rows(file), file, source, names))


def read_json(source: Source, names: Names) -> Iterator[Triple]:
    """One object a line, or one list of them, as APOC writes both."""
    names.keeps_identifiers = False
    for _, row in _json_rows(source.path):
        if row.get("type") == "node":
            _add_node(names, str(row.get("id")), row.get("properties") or {}, source.labels)
    rows = (
        (number, _flat_edge(row))
        for number, row in _json_rows(source.path)
        if row.get("type") != "node"
    )
    return _edges(rows, source.path, source, names)


def read_json_lines(source: Source, names: Names) -> Iterator[Triple]:
    """Neo4j's where the first line is a node or a relationship; triples otherwise."""
    from depcache.graph.loading import read_triples

    with reading(source.path), open_bytes(source.path) as file:
        first = file.readline().decode("utf-8", "replace")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict) and row.get("type") in ("node", "relationship") and "id" in row:
        return read_json(source, names)
    return read_triples(source, names)


def read_graphml(source: Source, names: Names) -> Iterator[Triple]:
    """Yields the triples of a GraphML file, as NetworkX reads it."""
    names.keeps_identifiers = False
    from depcache.graph.networkx_store import read_graphml as parse
    from depcache.graph.networkx_store import triples_of

    graph = parse(source.path)
    for node, properties in graph.nodes(data=True):
        _add_node(names, str(node), properties, source.labels)
    for head, relation, tail in triples_of(graph, name="\0"):
        yield names.name_of(head), relation, names.name_of(tail)


def read_graphrag(source: Source, names: Names) -> Iterator[Triple]:
    """`relationships.parquet`, alone or in its folder; older ones as create_final_*.parquet."""
    path = source.path
    file = next(path.glob("*relationships.parquet")) if path.is_dir() else path
    rows = enumerate(_parquet_rows(file), 1)
    return _edges(rows, file, source, names)


def _add_node(names: Names, identifier: str, row: Mapping[str, Any], labels: Sequence[str]) -> None:
    for key, value in row.items():
        name = key.partition(":")[0]  # `name:string` of Neo4j's import tool
        rank = rank_label(name, labels)
        if rank is None and name in _TITLES:
            rank = len(labels) + 2
        if rank is None or key in ("_labels", "_type"):
            continue
        for one in value if isinstance(value, list) else str(value or "").split(";"):
            names.add(identifier, str(one), rank)


def _node_id(row: Mapping[str, Any]) -> str:
    for key, value in row.items():
        if key == "_id" or key.partition("(")[0].endswith(":ID"):
            return _in_group(key, value)
    return str(row.get("id") or row.get("title") or "")


def _is_edge(row: Mapping[str, Any]) -> bool:
    return bool(_cell(row, HEADS) and _cell(row, TAILS))


def _cell(row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """The first cell of a column with one of these names; `:START_ID(Person)` is `:start_id`."""
    columns = {key.strip().lower().partition("(")[0]: key for key in row if key}
    found = (columns[name] for name in wanted if name in columns)
    return next((_in_group(key, row[key]) for key in found if row[key] not in (None, "")), "")


def _in_group(column: str, value: Any) -> str:
    """An identifier; those of one group of Neo4j, `:ID(Person)`, are not those of another."""
    group = column.partition("(")[2].rstrip(") ")
    return f"{group}:{value}" if group else str(value)


def _flat_edge(row: Row) -> Row:
    """Columns of a relationship as APOC writes it in JSON; any other object as it is."""
    if row.get("type") != "relationship":
        return row

    def end(name: str) -> Any:
        node = row.get(name)
        return node.get("id") if isinstance(node, dict) else node

    return {"head": end("start"), "relation": row.get("label"), "tail": end("end")}


def _edges(rows: Any, file: Path, source: Source, names: Names) -> Iterator[Triple]:
    for number, row in rows:
        head, tail = _cell(row, HEADS), _cell(row, TAILS)
        if not head and not tail and (_node_id(row) or not any(row.values())):
            continue  # a node, or an empty line
        relation = _cell(row, RELATIONS) or _cell(row, _LONG_RELATIONS)
        triple = names.name_of(head), " ".join(relation.split()), names.name_of(tail)
        try:
            for element, what in zip(triple, ("head", "relation", "tail"), strict=True):
                check_text(element, f"its {what}")
        except PromptError as error:
            if source.strict:
                raise PromptError(f"line {number} of {str(file)!r} is malformed: {error}") from None
            source.skipped.add(number, f"{error}")
            continue
        yield triple


def _csv_rows(path: Path) -> Numbered:
    text = triple_files.read_whole(path)
    first = text.partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns = [name or "" for name in rows.fieldnames or ()]
    known = dict.fromkeys(columns, "x")
    if not _is_edge(known) and not _node_id(known):
        raise PromptError(
            f"line 1 of {str(path)!r} names no head and tail ({shorten(first.strip())}): give the "
            "columns names, as in head,relation,tail"
        )
    try:
        for row in rows:
            if row.pop(None, None):
                raise PromptError(
                    f"line {rows.line_num} of {str(path)!r} has more cells than the header: "
                    "quote those that hold a separator"
                )
            yield rows.line_num, row
    except csv.Error as error:
        raise PromptError(
            f"line {rows.reader.line_num} of {str(path)!r} is malformed ({error}): correct it"
        ) from None


def _json_rows(path: Path) -> Numbered:
    text = triple_files.read_whole(path)
    number = 1
    try:
        if text.lstrip().startswith("["):
            found = list(enumerate(json.loads(text), 1))
        else:
            found = []
            for number, line in enumerate(text.split("\n"), 1):
                if line.strip():
                    found.append((number, json.loads(line)))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1) + number - 1
        raise PromptError(
            f"line {line} of {str(path)!r} is malformed ({error}): correct it"
        ) from None
    for number, row in found:
        if not isinstance(row, dict):
            raise PromptError(
                f"item {number} of {str(path)!r} is no object: export it with apoc.export.json"
            )
        yield number, row


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(f".parquet files need pyarrow: {install_command('formats')}") from None
    try:
        with reading(path):
            table = parquet.ParquetFile(path)
        wanted = [name for name in table.schema_arrow.names if name.lower() in _COLUMNS]
        if not {"source", "target"} <= set(wanted):
            raise PromptError(
                f"{str(path)!r} has no columns source and target: "
                "give relationships.parquet, or the folder that it is in"
            )
        for batch in table.iter_batches(columns=wanted):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        # pyarrow's own errors are both.
        raise PromptError(f"cannot read {str(path)!r} ({shorten(str(error))}): check it") from None


_COLUMNS = frozenset((*HEADS, *TAILS, *RELATIONS, *_LONG_RELATIONS))
