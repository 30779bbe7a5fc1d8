# SPDX-License-Identifier: Apache-2.0
"""Read RDF with rdflib: N-Triples line by line, Turtle and RDF/XML into memory.

Entities are called by their labels, else by the last part of their address; relations by the last
part of theirs. Labels without a language or in English go first; all others are aliases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph.base import Triple, check_text
from depcache.graph.labels import Names, is_other, rank_label
from depcache.graph.naming import local_name
from depcache.install_hints import install_command
from depcache.text_file import open_bytes, reading

if TYPE_CHECKING:
    from depcache.graph.loading import Source

_FORMATS = {".ttl": "turtle", ".n3": "n3", ".rdf": "xml", ".xml": "xml"}
_NO_LANGUAGE = ("", "en")
_OTHER_LANGUAGE = 100
"""Added to the rank of a label in another language, so that any of the former goes before it."""


def read_ntriples(source: Source, names: Names) -> Iterator[Triple]:
    """Yields the triples of a file; it is read twice, one line at a time.

    A malformed line is what it is in other files of lines.
    """
    _gather(_ntriples(source, is_last=False), names, source)
    return _name(_ntriples(source, is_last=True), names, source)


def read_rdf(source: Source, names: Names) -> Iterator[Triple]:
    """The whole file at once; PromptError where it is malformed."""
    rdflib = _import("rdflib")
    graph = rdflib.Graph()
    try:
        with reading(source.path):
            graph.parse(source.path, format=_FORMATS[source.path.suffix.lower()])
    except PromptError:
        raise
    except Exception as error:
        # Each of rdflib's parsers has exceptions of its own; one knows the line.
        where = f"line {line} of " if (line := _line_of(error)) else ""
        raise PromptError(
            f"{where}{str(source.path)!r} is malformed ({shorten(str(error))}): correct it"
        ) from None
    # In a fixed order: rdflib's is that of a set.
    rows = sorted(graph, key=lambda row: tuple(term.n3() for term in row))
    _gather(rows, names, source)
    return _name(rows, names, source)


def _line_of(error: Any) -> int | None:
    if hasattr(error, "getLineNumber"):  # of the parser of XML
        return error.getLineNumber()
    return error.lines + 1 if hasattr(error, "lines") else None  # of that of Turtle


def _gather(rows: Iterable[Any], names: Names, source: Source) -> None:
    for subject, predicate, value in rows:
        rank = _rank(predicate, source)
        if rank is not None and not _is_resource(value):
            # Another language's label is a name where there is no other, and an alias always.
            away = (value.language or "") not in _NO_LANGUAGE and not is_other(rank, source.labels)
            names.add(_id(subject), str(value), rank + _OTHER_LANGUAGE * away)


def _name(rows: Iterable[Any], names: Names, source: Source) -> Iterator[Triple]:
    for subject, predicate, value in rows:
        head = names.name_of(_id(subject), shorten=True)
        if _is_resource(value):
            tail = names.name_of(_id(value), shorten=True)
        elif _rank(predicate, source) is None:
            tail = str(value)
        else:
            continue
        triple = head, local_name(str(predicate)), tail
        try:
            for element in triple:
                check_text(element, "it")
        except PromptError as error:
            if source.strict:
                raise PromptError(
                    f"a triple of {str(source.path)!r} is malformed: {error}"
                ) from None
            source.skipped.add(0, str(error))
            continue
        yield triple


def _rank(predicate: Any, source: Source) -> int | None:
    if str(predicate) in source.labels:
        return source.labels.index(str(predicate))
    return rank_label(local_name(str(predicate)), source.labels)


def _is_resource(term: Any) -> bool:
    return not hasattr(term, "language")  # only literals have one


def _id(term: Any) -> str:
    return term.n3() if type(term).__name__ == "BNode" else str(term)


def _ntriples(source: Source, *, is_last: bool) -> Iterator[Any]:
    ntriples = _import("rdflib.plugins.parsers.ntriples")
    found: list[Any] = []

    class Sink:
        def triple(self, *terms: Any) -> None:
            found.append(terms)

    bnodes: dict[str, Any] = {}
    with reading(source.path), open_bytes(source.path) as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8", "surrogateescape").strip()
            if not line or line.startswith("#"):
                continue
            try:
                check_text(line, "it")
                ntriples.W3CNTriplesParser(Sink(), bnodes).parsestring(line)
            except (PromptError, ntriples.ParseError) as error:
                found.clear()
                if is_last and source.strict:
                    raise PromptError(
                        f"line {number} of {str(source.path)!r} is malformed: {shorten(str(error))}"
                    ) from None
                if is_last:
                    source.skipped.add(number, f"it is no triple: {shorten(line)}")
            yield from found
            found.clear()


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"RDF files need {module.partition('.')[0]}: {install_command('formats')}"
        ) from None
