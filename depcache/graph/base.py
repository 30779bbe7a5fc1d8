# SPDX-License-Identifier: Apache-2.0
"""What every graph store promises: triples in, neighbourhoods and names out, a version that counts.

An entity is its name and a triple is `(head, relation, tail)`; all three are data, whatever
characters they hold. Edges are walked both ways, and each walk knows its direction.

A hub is an entity with more edges than a caller asks for. Its edges are then a sample: those
with the lowest `rank_of`, a hash of the triple. The sample is the same in every store, process
and order of loading, and one more edge changes it by one edge at most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple

from depcache.errors import PromptError, shorten

Triple = tuple[str, str, str]
Progress = Callable[[int], None]
"""Called with the number of triples stored so far."""

BATCH_SIZE = 10_000
MAX_SCANNED_EDGES = 100_000
"""Edges that one call looks at, per direction, to sample hubs; a larger hub is sampled from so
many of its edges, in the store's own order."""


class Edge(NamedTuple):
    """One step away from an entity. `is_forward`: the entity is the head of the triple."""

    relation: str
    is_forward: bool
    entity: str


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The edges of one entity, sorted by relation, direction (inverse first) and name.

    edges      each edge once; a self loop as a forward edge
    num_edges  what the entity has in all; more than `len(edges)` where they are a sample.
               A self loop counts twice
    """

    edges: tuple[Edge, ...]
    num_edges: int
    is_sampled: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct triples, entities, names of relations, and aliases."""

    triples: int
    entities: int
    relations: int
    aliases: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one call changed. Of a call that changed nothing, the version is the old one.

    num_triples  triples that were new, or that are gone
    entities     the ends of those triples; `GraphStore.find_affected` has the trees
    version      of the graph afterwards
    """

    num_triples: int
    entities: frozenset[str]
    version: int


class GraphStore(ABC):
    """A graph of triples. Safe to share by threads; one writer at a time.

    Raises PromptError for triples and names that are no text, ServerError when the database
    cannot be reached. Every method may raise the latter.
    """

    url: str
    """Where the graph is, to show a person; never holds a password."""

    keeps_aliases: bool = True
    """Whether `add_aliases` can be called."""

    # --- what a store implements ---

    @abstractmethod
    def version(self) -> int:
        """Grows with every change, aliases included; 0 for a graph that never held anything."""

    @abstractmethod
    def counts(self) -> Counts: ...

    @abstractmethod
    def names(self) -> list[str]:
        """Every entity, sorted."""

    def relations(self) -> list[str]:
        """Every name of a relation, sorted."""
        return sorted({relation for _, relation, _ in self.triples()})

    @abstractmethod
    def names_by_degree(self, limit: int | None = None) -> list[str]:
        """The `limit` entities of most edges, most first and equal ones by name; None for all.

        Edges count as in `Neighbourhood.num_edges`: a self loop twice.
        """

    @abstractmethod
    def aliases(self) -> dict[str, list[str]]:
        """Entity to its other names, for those that have any; both sorted."""

    @abstractmethod
    def triples(self) -> Iterator[Triple]:
        """Every triple, in no particular order."""

    @abstractmethod
    def neighbours(
        self, names: Iterable[str], max_edges: int | None = None
    ) -> dict[str, Neighbourhood]:
        """Neighbourhoods of those `names` that are entities, in the order of `names`.

        max_edges  most edges of each; beyond it a sample (top of this file). None for all
        """

    @abstractmethod
    def _add_batch(self, triples: Sequence[Triple]) -> Iterable[Triple | tuple[str, str]]:
        """Store checked, distinct triples in one step; those that were new.

        Only first and last of each are read, so a pair of the two ends will do.
        """

    @abstractmethod
    def _remove_batch(self, triples: Sequence[Triple]) -> Iterable[Triple | tuple[str, str]]:
        """The reverse; an entity left without edges goes too."""

    @abstractmethod
    def _add_aliases(self, aliases: Mapping[str, Sequence[str]]) -> set[str]:
        """Add what is missing; entities that are not there are left out. Those found."""

    def is_empty(self) -> bool:
        """Whether it holds no triple."""
        return self.counts().triples == 0

    def stamp(self) -> str:
        """A short text that is another one after a change of the triples, in any process.

        Unlike the version it can be kept in a file: a graph in memory counts from 0 each time.
        """
        return str(self.version())

    def flush(self) -> None:
        """Make what was written outlive this process, where the store can."""

    def forget(self) -> None:
        """Drop what is kept in memory to answer sooner. Answers stay the same."""

    def close(self) -> None:
        """Let go of the database. Safe to call twice."""

    # --- what all share ---

    def upsert(
        self,
        triples: Iterable[Sequence[str]],
        *,
        batch_size: int = BATCH_SIZE,
        on_progress: Progress | None = None,
    ) -> Change:
        """Add triples; those that are there already change nothing.

        A batch is stored wholly or not at all. PromptError names the first triple that is
        malformed; the batches before it stay.
        """
        return self._write(self._add_batch, triples, batch_size, on_progress)

    def remove(self, triples: Iterable[Sequence[str]], *, batch_size: int = BATCH_SIZE) -> Change:
        """Take triples out; those that are not there change nothing."""
        return self._write(self._remove_batch, triples, batch_size, None)

    def add_aliases(self, aliases: Mapping[str, Sequence[str]]) -> list[str]:
        """Give entities further names. Returns the entities that the graph does not have."""
        for entity, names in aliases.items():
            for name in (entity, *names):
                check_text(name, "alias")
        known = self._add_aliases(aliases)
        self.flush()
        return [entity for entity in aliases if entity not in known]

    def find_affected(self, entities: Iterable[str], num_hops: int) -> set[str]:
        """Every entity whose tree of `num_hops` can hold an edge at one of `entities`.

        With `Change.entities` these are the trees that a change made stale: all that could
        hold it, whether or not pruning would have kept it. Costs the edges it walks.
        """
        found = set(entities)
        frontier = found
        for _ in range(num_hops - 1):
            around = self.neighbours(frontier)
            frontier = {edge.entity for near in around.values() for edge in near.edges} - found
            found |= frontier
        return found

    def _write(
        self,
        write: Callable[[Sequence[Triple]], Iterable[Sequence[str]]],
        triples: Iterable[Sequence[str]],
        batch_size: int,
        on_progress: Progress | None,
    ) -> Change:
        num_changed = num_done = 0
        entities: set[str] = set()
        rest = iter(triples)
        try:
            while batch := list(islice(rest, batch_size)):
                for ends in write(list(dict.fromkeys(check_triples(batch, num_done)))):
                    num_changed += 1
                    entities.add(ends[0])
                    entities.add(ends[-1])
                num_done += len(batch)
                if on_progress is not None:
                    on_progress(num_done)
        finally:
            if num_changed:
                self.flush()
        return Change(num_changed, frozenset(entities), self.version())

    def __enter__(self) -> GraphStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def rank_of(triple: Sequence[str]) -> int:
    """48 bits that stand for a triple; the edges of a hub are sampled by it."""
    return int.from_bytes(blake2b("\0".join(triple).encode(), digest_size=6).digest())


def check_triples(items: Sequence[Any], first_number: int = 0) -> list[Triple]:
    """The items as triples; PromptError with the number (from 0) and the reason of a bad one."""
    result: list[Triple] = []
    for number, item in enumerate(items, first_number):
        if isinstance(item, str) or not isinstance(item, Sequence) or len(item) != 3:
            raise PromptError(
                f"triple {number} is {shorten(item)}: send (head, relation, tail), three strings"
            )
        for element in item:
            check_text(element, f"triple {number}")
        result.append((item[0], item[1], item[2]))
    return result


def check_text(value: Any, where: str) -> None:
    """PromptError unless `value` is a name: visible, valid Unicode, without NUL."""
    # isascii first: most names are, and a pure ASCII name needs no further look at its encoding.
    if isinstance(value, str) and value.strip() and "\0" not in value:
        if value.isascii():
            return
        try:
            value.encode()
            return
        except UnicodeEncodeError:
            pass
    raise PromptError(
        f"{where} holds {shorten(value)}: a name is visible text, in valid Unicode, without NUL"
    )
