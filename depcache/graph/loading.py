# SPDX-License-Identifier: Apache-2.0
"""Read a graph from a file or folder of any known form, told by its name.

    .tsv .txt .jsonl            triples, see `depcache.graph.triples`
    .nt .ttl .n3 .rdf .xml      RDF; needs the extra `formats` (`depcache.graph.rdf`)
    .graphml                    NetworkX, Neo4j, MS GraphRAG and others
    .csv                        with a header; also Neo4j's, by APOC or for its import tool
    .json                       Neo4j's by APOC, one object a line or one list
    .parquet, or a folder       MS GraphRAG's; needs the extra `formats`
    a folder of .csv            nodes and relationships of Neo4j

.tsv, .txt, .jsonl, .csv, .json and .nt may be gzipped (.gz). Labels become names, see
`depcache.graph.labels`. Entities of which no triple says anything are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from depcache.errors import PromptError
from depcache.graph import triples as triple_files
from depcache.graph.base import Triple
from depcache.graph.labels import Names, is_identifier, name_triples, rank_label
from depcache.graph.triples import Skipped

FORMS = ".tsv, .txt, .jsonl, .nt, .ttl, .n3, .rdf, .graphml, .csv, .json, .parquet"


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and how.

    labels   properties or relations that say what a thing is called, the best first; `name`,
             `label`, `rdfs:label` and their like are known
    strict   fail at the first malformed line
    skipped  is told of every line that was left out instead
    """

    path: Path
    labels: tuple[str, ...] = ()
    strict: bool = False
    skipped: Skipped = field(default_factory=Skipped)


Reader = Callable[[Source, Names], Iterator[Triple]]
"""Yields triples by the names of their ends, having filled `Names` before the first."""


class GraphReader:
    """The triples of a file, and the other names of their entities.

    Iterate over it once; then `aliases` is complete. Raises PromptError, with the name of the file
    and the line where there is one, for what cannot be read; ConfigError without the extra
    `formats` where a form needs it.

    known  identifier -> name, of the graph that the triples are for
    """

    def __init__(
        self,
        path: str | Path,
        *,
        labels: Sequence[str] = (),
        known: Mapping[str, str] | None = None,
        strict: bool = False,
        skipped: Skipped | None = None,
    ) -> None:
        self._source = Source(
            Path(path), tuple(labels), strict, Skipped() if skipped is None else skipped
        )
        self._names = Names(known)
        self._read = _reader_of(self._source.path)

    def __iter__(self) -> Iterator[Triple]:
        return self._read(self._source, self._names)

    def aliases(self) -> dict[str, list[str]]:
        """Name to identifiers and further labels."""
        return self._names.aliases()


def is_graph_file(path: str | Path) -> bool:
    """Whether `GraphReader` knows the form, by the name alone, or by what lies in the folder."""
    return _find_reader(Path(path)) is not None


def _reader_of(path: Path) -> Reader:
    reader = _find_reader(path)
    if reader is not None:
        return reader
    if path.is_dir():
        raise PromptError(
            f"the folder {str(path)!r} holds no graph: one has relationships.parquet of MS "
            "GraphRAG or .csv files of Neo4j"
        )
    raise PromptError(
        f"cannot tell the form of {str(path)!r} by its name: name it {FORMS}, or .tsv.gz and so on"
    )


def _find_reader(path: Path) -> Reader | None:
    from depcache.graph import property_files, rdf

    if path.is_dir():
        if any(path.glob("*relationships.parquet")):
            return property_files.read_graphrag
        return property_files.read_csv if any(path.glob("*.csv")) else None
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if path.name.lower().endswith(".gz") and suffix in _PLAIN_ONLY:
        return None
    readers: dict[str, Reader] = {
        **dict.fromkeys((".tsv", ".txt"), read_triples),
        ".jsonl": property_files.read_json_lines,
        ".json": property_files.read_json,
        ".nt": rdf.read_ntriples,
        **dict.fromkeys((".ttl", ".n3", ".rdf", ".xml"), rdf.read_rdf),
        ".graphml": property_files.read_graphml,
        ".csv": property_files.read_csv,
        ".parquet": property_files.read_graphrag,
    }
    return readers.get(suffix)


_PLAIN_ONLY = (".ttl", ".n3", ".rdf", ".xml", ".graphml", ".parquet")


def read_triples(source: Source, names: Names) -> Iterator[Triple]:
    """A file of `depcache.graph.triples`; a label in it names identifiers only."""
    # Twice: a label may stand behind the triples of what it names.
    for head, relation, tail in triple_files.read_triples(source.path):
        rank = rank_label(relation, source.labels)
        if rank is not None and (relation in source.labels or is_identifier(head)):
            names.add(head, tail, rank)
    rows = triple_files.read_triples(source.path, strict=source.strict, skipped=source.skipped)
    return name_triples(rows, names, source.labels)
