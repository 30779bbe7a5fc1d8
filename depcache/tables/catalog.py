# SPDX-License-Identifier: Apache-2.0
"""A catalog: the tables of a schema by name, kept in a file of JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from depcache.errors import PromptError, shorten
from depcache.tables.references import ReferenceGraph
from depcache.tables.table import Table
from depcache.text_file import read_text, replacing

MAX_NAMED = 5


@dataclass(frozen=True)
class Difference:
    """What a catalog has that another has not. Names are ascending.

    added    tables that are new
    removed  tables that are gone
    changed  tables whose text or references are others
    stale    tables of the *old* catalog that were removed or changed, and all that refer to
             them: what they were computed with is not so any more
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    stale: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Catalog:
    """Tables by name, in the order in which they came. Raises PromptError for a name that is twice.

    Iterating gives the tables, `catalog["orders"]` one of them.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables: dict[str, Table] = {}
        for table in tables:
            if table.name in self._tables:
                raise PromptError(
                    f"there are two tables {shorten(table.name)}: give each a name of its own, "
                    "for example with its schema"
                )
            self._tables[table.name] = table

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def __len__(self) -> int:
        return len(self._tables)

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def __getitem__(self, name: str) -> Table:
        return self._tables[self.find(name)]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tables)

    @cached_property
    def references(self) -> ReferenceGraph:
        """Who refers to whom."""
        return ReferenceGraph(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all tables in hexadecimal, whatever their order."""
        hashed = hashlib.sha256()
        for name in sorted(self._tables):
            hashed.update(_to_line(self._tables[name]).encode())
        return hashed.hexdigest()

    def find(self, name: str) -> str:
        """The table's own spelling of a name; SQL does not care about case, so nor does this.

        Raises PromptError, with the nearest names, when there is none or case decides.
        """
        if name in self._tables:
            return name
        if not isinstance(name, str):
            raise PromptError(f"the name of a table is {shorten(name)}: send some text")
        alike = self._folded.get(name.casefold(), [])
        if len(alike) == 1:
            return alike[0]
        near = alike or get_close_matches(name, self._tables, MAX_NAMED, 0.5)
        near = near or list(self._tables)[:MAX_NAMED]
        raise PromptError(
            f"{shorten(name)} is no table of the catalog: it has "
            f"{', '.join(map(shorten, near[:MAX_NAMED])) or 'none'}"
            + (f" and {len(self) - len(near)} more" if len(self) > len(near) else "")
        )

    def select(self, names: Iterable[str]) -> set[str]:
        """The tables' own spelling of names and of patterns, as `album.*` is one.

        A name with a `*` that no table has is a pattern, of `*`, `?` and `[ab]`, whatever the case.
        Raises PromptError as `find`, and for a pattern that no name fits.
        """
        found: set[str] = set()
        for name in names:
            if not isinstance(name, str) or "*" not in name or name in self._tables:
                found.add(self.find(name))
                continue
            fitting = [known for known in self._tables if fits(known, name)]
            if not fitting:
                raise PromptError(
                    f"no table of the catalog fits the pattern {shorten(name)}: look at its names "
                    "with `depcache tables show`"
                )
            found.update(fitting)
        return found

    def difference(self, old: Catalog) -> Difference:
        """What this catalog has that `old` has not."""
        removed = sorted(set(old.names).difference(self.names))
        changed = [n for n in sorted(old.names) if n in self and self[n] != old[n]]
        return Difference(
            added=tuple(sorted(set(self.names).difference(old.names))),
            removed=tuple(removed),
            changed=tuple(changed),
            stale=tuple(sorted(old.references.dependents([*removed, *changed]))),
        )

    def write(self, path: str | Path) -> None:
        """Write one table a line. The file is the old one or the whole new one at every moment.

        Raises ConfigError when it cannot be written.
        """
        with replacing(Path(path)) as file:
            file.writelines(_to_line(table).encode() for table in self)

    @classmethod
    def read(cls, path: str | Path) -> Catalog:
        """The catalog that `write` wrote. Raises PromptError, with the line, for anything else."""
        return cls.parse(read_text(Path(path)), repr(str(path)))

    @classmethod
    def parse(cls, text: str, name: str) -> Catalog:
        """The catalog in the text of such a file; `name` is what errors call it."""
        tables: list[Table] = []
        # Not `splitlines`: a name may hold U+2028, which JSON need not escape.
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                tables.append(Table.from_json(json.loads(line)))
            except PromptError as error:
                raise PromptError(f"line {number} of {name}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise PromptError(
                    f"line {number} of {name} is no JSON: a catalog is written by "
                    "`depcache tables load`"
                ) from error
        if not tables:
            raise PromptError(f"{name} holds no table: write it with `depcache tables load`")
        return cls(tables)

    @cached_property
    def _folded(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._tables:
            found.setdefault(name.casefold(), []).append(name)
        return found


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one that a pattern of `*`, `?` and `[ab]` means, whatever the case."""
    return fnmatchcase(name.casefold(), pattern.casefold())


def _to_line(table: Table) -> str:
    return json.dumps(table.to_json(), ensure_ascii=False) + "\n"
