# SPDX-License-Identifier: Apache-2.0
"""Files that a user names: UTF-8, gzipped or not, and one sentence where they cannot be read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from depcache.errors import ConfigError, DepCacheError, PromptError, shorten


@contextmanager
def reading(
    file: str | Path, error: type[DepCacheError] = PromptError, what: str = ""
) -> Iterator[None]:
    """Raise `error`, which names the file, for all that can go wrong while it is read.

    what  words between "cannot read" and the name
    """
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
        name = f"{what} {str(file)!r}".lstrip()
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"cannot read {name} ({reason}): {_advice(problem)}") from problem


def open_bytes(file: Path) -> IO[bytes]:
    """A file for reading, unpacked if its name ends with .gz; read it inside `reading`."""
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb")  # pyright: ignore[reportReturnType]


def read_text(file: Path, error: type[DepCacheError] = PromptError, what: str = "") -> str:
    """All of a file that is UTF-8; raises as `reading`."""
    with reading(file, error, what):
        return file.read_text(encoding="utf-8")


def read_yaml(file: str, what: str) -> dict[str, Any]:
    """The `name: value` lines of a YAML file; ConfigError when it holds something else."""
    try:
        values = yaml.safe_load(read_text(Path(file), ConfigError, what)) or {}
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what} {file!r} is no YAML ({reason}): correct it") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{what} {file!r} holds {shorten(values)}: write `name: value` lines")
    return values


def _advice(problem: Exception) -> str:
    if isinstance(problem, UnicodeDecodeError):
        return "save it as UTF-8"
    if isinstance(problem, EOFError | zlib.error | gzip.BadGzipFile):
        return "it is no whole gzip file, pack it again"
    return "check the path"
