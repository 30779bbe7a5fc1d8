# SPDX-License-Identifier: Apache-2.0
"""A file of JSON lines that a long run adds to as it goes, so that another can go on from there."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

from depcache.errors import ConfigError


class StateFile:
    """Objects, one a line, in the order they were added. Safe to share by threads.

    A run that is killed leaves whole lines and perhaps a piece of one, which is left out when
    the file is read. Raises ConfigError when the file cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._is_torn = False  # the last line has no end yet

    def read(self) -> list[dict[str, Any]]:
        """Every object; none where there is no file."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"cannot read the state {str(self.path)!r} ({error})") from error
        self._is_torn = bool(text) and not text.endswith("\n")
        rows: list[dict[str, Any]] = []
        for line in text.split("\n"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """Add one object."""
        self._write("a", row)

    def restart(self, row: dict[str, Any]) -> None:
        """Forget all objects; this is the first of new ones."""
        self._write("w", row)

    def _write(self, mode: str, row: dict[str, Any]) -> None:
        text = json.dumps(row) + "\n"
        with self._lock:
            try:
                with self.path.open(mode, encoding="utf-8") as file:
                    file.write("\n" + text if self._is_torn and mode == "a" else text)
            except OSError as error:
                raise ConfigError(f"cannot write the state {str(self.path)!r} ({error})") from error
            self._is_torn = False
