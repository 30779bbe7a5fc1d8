# SPDX-License-Identifier: Apache-2.0
"""What things with an identifier are called: labels become names, identifiers become aliases.

A graph of `http://x.org/m/0abc` or `Q42` is of no use in a prompt and in no question. Where a file
says what such a thing is called, the entity gets that name, and its identifier and its other
labels are aliases. An address without a label is called by its last part. A name that another
identifier has already goes to the first one only; the other keeps its identifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from depcache.graph.base import Triple
from depcache.graph.naming import is_address, local_name, words_of

_ID = re.compile(r"[QPL]\d+|/[a-z]+/[\w/]+|_:\S+|[a-z][\w.-]*:\S+|\d+|[0-9a-fA-F-]{32,}")

# By the words of their last part: rdfs:label, skos:prefLabel, schema:name, foaf:name, ...
PREFERRED = (("pref", "label"), ("label",), ("name",))
OTHER = (("alt", "label"), ("alias",), ("aliases",), ("alternate", "name"), ("also", "known", "as"))


def is_identifier(name: str) -> bool:
    """Whether a name is an address, a number or a key rather than words."""
    return is_address(name) or _ID.fullmatch(name) is not None


def rank_label(relation: str, labels: Sequence[str] = ()) -> int | None:
    """How good a name a relation or property gives, 0 best; None where it gives none.

    labels  relations that give names, the best first; they go before those known by themselves
    """
    if relation in labels:
        return labels.index(relation)
    words = words_of(relation)
    for number, known in enumerate((*PREFERRED, *OTHER), len(labels)):
        if words == known:
            return number
    return None


def is_other(rank: int, labels: Sequence[str] = ()) -> bool:
    """Whether a rank of `rank_label` is that of a further name, never the first."""
    return rank >= len(labels) + len(PREFERRED)


class Names:
    """From identifiers to the names of entities. Filled first, then asked.

    known  identifier -> name, of a graph that has some of them already
    """

    keeps_identifiers = True
    """False: they are numbers of a database, by which nobody asks for an entity."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._labels: dict[str, list[tuple[int, int, str]]] = {}
        self._names: dict[str, str] = dict(known or {})
        self._owners: dict[str, str] = {name: key for key, name in self._names.items()}

    def add(self, identifier: str, label: str, rank: int) -> None:
        """Note a label; the one of the lowest rank is the name, the earliest of equal ones."""
        label = " ".join(label.split())
        if label:
            found = self._labels.setdefault(identifier, [])
            found.append((rank, len(found), label))

    def name_of(self, identifier: str, *, shorten: bool = False) -> str:
        """The name of an entity; its last part if it is an address and `shorten`."""
        name = self._names.get(identifier)
        if name is None:
            name = self._choose(identifier, shorten)
            self._names[identifier] = name
            self._owners.setdefault(name, identifier)
        return name

    def _choose(self, identifier: str, shorten: bool) -> str:
        labels = [label for _, _, label in sorted(self._labels.get(identifier, ()))]
        if not labels and shorten and is_address(identifier):
            labels = [local_name(identifier).replace("_", " ").strip()]
        for label in labels[:1]:
            if label and self._owners.get(label, identifier) == identifier:
                return label
            # Another thing of the same name; that both are told apart comes first.
            return f"{label} ({local_name(identifier)})" if label else identifier
        return identifier

    def aliases(self) -> dict[str, list[str]]:
        """Name to identifier and further labels, of all that `name_of` was asked about."""
        found: dict[str, list[str]] = {}
        for identifier, name in self._names.items():
            labels = [label for _, _, label in sorted(self._labels.get(identifier, ()))]
            own = [identifier] if self.keeps_identifiers else []
            others = [other for other in dict.fromkeys([*own, *labels]) if other != name]
            if others:
                found[name] = others
        return found


def known_identifiers(
    aliases: Mapping[str, Sequence[str]], names: Iterable[str] = ()
) -> dict[str, str]:
    """Identifier to name, of a graph's aliases, and of its entities that have no other name."""
    own = {name: name for name in names if is_identifier(name)}
    return own | {
        alias: name for name, others in aliases.items() for alias in others if is_identifier(alias)
    }


def name_triples(
    triples: Iterable[Triple], names: Names, labels: Sequence[str] = ()
) -> Iterator[Triple]:
    """Triples by the names of their ends; those that only say what an identifier is called go."""
    for head, relation, tail in triples:
        if rank_label(relation, labels) is not None and (relation in labels or is_identifier(head)):
            names.name_of(head)
            continue
        yield names.name_of(head), relation, names.name_of(tail)
