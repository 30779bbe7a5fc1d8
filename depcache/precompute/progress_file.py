# SPDX-License-Identifier: Apache-2.0
"""Which items of a source are done, and for what: the state that a precomputation goes on from.

The first line says what decides the KV of a path: settings and server. If that is another now,
nothing of the file holds. Then there is a line per item, an entity of a graph or a chunk of a file:

    {"entity": name, "choice": digest, "paths": digest}

`choice` stands for what decides the paths: the graph and the bounds of the expansion, the content
of the file. While it is the same the item is done, without a look at it; if not, it still is when
its paths have the same digest. A line of its name alone says that it is not done any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from depcache.errors import ConfigError
from depcache.precompute.settings import digest_of
from depcache.prompt.paths import Path
from depcache.state_file import StateFile

_MARK = "depcache_precompute"
_VERSION = 1


class ProgressFile:
    """Safe to share by threads. Nothing is written before `begin`.

    path      of the file; None keeps the state in memory
    made_for  what decides the KV of a path, by name
    choice    see the top of this file

    Raises ConfigError when the file cannot be read or is something else.
    """

    def __init__(
        self, path: str | FilePath | None, made_for: Mapping[str, str], choice: str
    ) -> None:
        self.choice = choice
        self.why_anew = ""
        """Why the items of the file do not count; "" where they do, or there are none."""
        self._made_for = dict(made_for)
        self._file = None if path is None else StateFile(path)
        rows = [] if self._file is None else self._file.read()
        self._has_header = bool(rows)
        self._rows: dict[str, dict[str, Any]] = {}
        if not rows:
            self._refuse_other_files()
            return
        _require_header(rows, path)
        before = rows[0].get("made_for") or {}
        changed = [
            name
            for name in sorted({*before, *self._made_for})
            if before.get(name) != self._made_for.get(name)
        ]
        if changed:
            self.forget(f"{', '.join(changed)} not the same as before")
            return
        self._rows = _read_done(rows)

    def forget(self, why: str) -> None:
        """Count nothing as done; `begin` will empty the file."""
        self.why_anew = why
        self._has_header = False
        self._rows = {}

    def __contains__(self, name: str) -> bool:
        """Whether it was done, for whatever choice of paths."""
        return name in self._rows

    def is_done(self, name: str) -> bool:
        """Whether it is done for this choice of paths."""
        row = self._rows.get(name)
        return row is not None and row.get("choice") == self.choice

    def has_paths(self, name: str, paths: Sequence[Path]) -> bool:
        """Whether it was done with just these paths."""
        row = self._rows.get(name)
        return row is not None and row.get("paths") == _digest_of_paths(paths)

    @property
    def has_others(self) -> bool:
        """Whether items were done for another choice of paths."""
        return any(row.get("choice") != self.choice for row in self._rows.values())

    def begin(self) -> None:
        """Write the first line, unless the file has it; what does not count is removed."""
        if self._file is not None and not self._has_header:
            self._file.restart({_MARK: _VERSION, "made_for": self._made_for})
        self._has_header = True

    def write(self, name: str, paths: Sequence[Path]) -> None:
        """The item is done, with these paths."""
        row = {"entity": name, "choice": self.choice, "paths": _digest_of_paths(paths)}
        if self._file is not None:
            self._file.append(row)
        self._rows[name] = row

    def _refuse_other_files(self) -> None:
        """A file without a line of JSON is ours only if a first line was being written."""
        if self._file is None or not self._file.path.exists():
            return
        start = self._file.path.read_bytes()[: len(_MARK) + 2]
        if not f'{{"{_MARK}'.encode().startswith(start):
            raise ConfigError(
                f"{str(self._file.path)!r} is no state of a precomputation: name another file, "
                "or remove it"
            )


def count_done(path: str | FilePath, entities: Collection[str]) -> int:
    """How many of `entities` are done in a state file, for whatever settings and server.

    Raises ConfigError when there is no such file, or it is something else.
    """
    rows = StateFile(path).read()
    _require_header(rows, path)
    return len(_read_done(rows).keys() & set(entities))


def forget_entities(path: str | FilePath, entities: Iterable[str]) -> None:
    """Let `entities` be computed again by the next run; errors as `count_done`."""
    file = StateFile(path)
    rows = file.read()
    _require_header(rows, path)
    done = _read_done(rows)
    for entity in entities:
        if entity in done:
            file.append({"entity": entity})


def _require_header(rows: Sequence[Mapping[str, Any]], path: str | FilePath | None) -> None:
    if not rows or rows[0].get(_MARK) != _VERSION:
        raise ConfigError(
            f"{str(path)!r} is no state of a precomputation: name another file, or remove it"
        )


def _read_done(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last line of each entity that is done."""
    last = {row["entity"]: row for row in rows if isinstance(row.get("entity"), str)}
    return {entity: row for entity, row in last.items() if "paths" in row}


def _digest_of_paths(paths: Sequence[Path]) -> str:
    return digest_of(sorted(map(list, paths)))
