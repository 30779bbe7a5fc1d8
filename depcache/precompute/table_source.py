# SPDX-License-Identifier: Apache-2.0
"""Tables of a catalog as a source: each with all that it refers to, as prompts have them.

A table's KV is decided by the system and by the tables that it sees, those in the prompt that it
refers to. So an item is not a table but a set of tables, written by what writes questions:

    orders              the table with all it refers to, directly or not: what a closed prompt has
    orders (alone)      the table without what it refers to
    orders, customers   a set that was asked, and nothing beside it

Closed sets may share a request: together they are as closed. Others may not, where one would see
what it refers to, so these travel in groups. Databases may declare a table alike; then the text
says which tables there are, and the name what one of them refers to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from depcache.errors import PromptError, shorten
from depcache.precompute.pieces import Piece
from depcache.precompute.settings import QUESTION, digest_of
from depcache.precompute.source import Source, Wording
from depcache.prompt.chunks import CHUNK_SEPARATOR
from depcache.prompt.paths import Path
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM
from depcache.text_file import read_text

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog


class TableSource(Source):
    """The tables of a catalog, what is referred to first.

    alone   each table that refers to others is computed without them too, for prompts that are
            not closed
    sets    further sets of tables, names in any case, each computed as it is: those that a log has
    sees    what a table of later requests sees; with `component` that depends on all tables of the
            prompt, so only `sets` are found again
    system  the system message of later requests; None or "" for none
    fields  further fields of every request, `{"cache_salt": "tenant"}` for one

    Raises PromptError for a name in `sets` that is not in the catalog, and for another `sees`.
    """

    words = Wording(
        items="tables",
        choice="the catalog",
        unknown="the catalog has no such table",
        empty="it has no text",
        fewer="about {num} tables would fit: leave others out",
    )

    def __init__(
        self,
        catalog: Catalog,
        *,
        alone: bool = False,
        sets: Iterable[Iterable[str]] = (),
        sees: str = "references",
        system: str | None = DEFAULT_TABLE_SYSTEM,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        from depcache.tables.seen import read_sees

        self._catalog = catalog
        names_of: dict[str, list[str]] = {}
        for table in catalog:
            names_of.setdefault(table.text, []).append(table.name)
        self._named = {text: names[0] for text, names in names_of.items()}
        alike = {text: names for text, names in names_of.items() if len(names) > 1}
        self._alike = {name for names in alike.values() for name in names}
        self._unlike = {
            text for text, names in alike.items() if len(set(map(self._texts_seen, names))) > 1
        }
        self._system = system
        self._sees = read_sees(sees)
        self._fields = dict(fields or {})
        references = catalog.references
        self._items: dict[str, tuple[str, ...]] = {}
        self._groups: dict[str, str] = {}
        for name in references.order:
            self._items[name] = references.closure([name])
        wanted = [references.sort({catalog.find(name) for name in names}) for names in sets]
        wanted += [(name,) for name in references.order if alone]
        for tables in wanted:
            if tables != references.closure(tables):
                self._add_open(tables)
            elif len(tables) > 1:
                self._items.setdefault(", ".join(tables), tables)

    def _add_open(self, tables: tuple[str, ...]) -> None:
        """Add a set without some that it refers to; beside these it would be another."""
        item = group = ", ".join(tables)
        if len(tables) == 1:
            item = f"{item} (alone)"
            # Tables of one level do not refer to each other.
            level = self._catalog.references.level(tables[0])
            group = item if level is None else f"level {level}"
        self._items.setdefault(item, tables)
        self._groups.setdefault(item, group)

    def names(self) -> list[str]:
        return list(self._items)

    def find(self, name: str) -> list[Path] | None:
        tables = self._items.get(name)
        return None if tables is None else [self._path_of(each) for each in tables]

    def _texts_seen(self, table: str) -> frozenset[str]:
        return frozenset(
            self._catalog[each].text for each in self._catalog.references.closure([table])
        )

    def _path_of(self, table: str) -> Path:
        text = self._catalog[table].text
        return (text, table) if table in self._alike else (text,)

    def piece_of(self, name: str) -> Piece:
        """One table with what it sees in a closed prompt, and with nothing that sees it."""
        references = self._catalog.references
        seen: tuple[str, ...] = (name,)
        if self._sees == "references":
            seen = references.closure([name])
        elif self._sees == "component":
            [component] = [each for each in references.components if name in each]
            seen = component[: component.index(name) + 1]
        return Piece(name, tuple(map(self._path_of, seen)), 0, name)

    def cut(self, name: str, paths: Sequence[Path], max_chars: float) -> list[Piece]:
        """One piece: a table without a part of what it refers to would be another."""
        num_chars = sum(len(CHUNK_SEPARATOR) + len(path[0]) for path in paths)
        # With `component` more tables would be seen by others. Two that are written alike are one
        # row of a prompt, which sees what either refers to.
        is_alone = self._sees == "component" or any(path[0] in self._unlike for path in paths)
        group = self._groups.get(name, name if is_alone else "")
        return [Piece(name, tuple(paths), num_chars, group)]

    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        from depcache.tables.render import render_tables  # brings networkx

        # A path is the text of a table, and its name where another has the same text.
        names = [name[0] if name else self._named[text] for text, *name in paths]
        prompt = render_tables(
            self._catalog,
            names,
            QUESTION,
            system=self._system,
            sees=self._sees,
            close=False,
        )
        return {**self._fields, "messages": prompt.messages, **prompt.extra_body}

    def describe(self) -> dict[str, str]:
        from depcache.tables.render import HEADING

        return {
            "source": "tables",
            "sees": self._sees,
            "form": digest_of([HEADING, CHUNK_SEPARATOR]),
            "system": digest_of(self._system or ""),
            "fields": digest_of(self._fields),
        }

    def stamp(self) -> str:
        return self._catalog.digest

    def split(self, piece: Piece) -> list[Piece]:
        """The piece as it is, for the reason that `cut` has."""
        return [piece]


def read_sets(path: str | FilePath) -> list[list[str]]:
    """Sets of tables, a JSON list of names a line. Raises PromptError for any other line."""
    sets: list[list[str]] = []
    for number, line in enumerate(read_text(FilePath(path)).split("\n"), 1):
        if not line.strip():
            continue
        try:
            names = json.loads(line)
        except (ValueError, RecursionError):
            names = line
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PromptError(
                f"line {number} of {str(path)!r} is {shorten(names)}: write a JSON list of the "
                "names of tables"
            )
        sets.append(names)
    return sets
