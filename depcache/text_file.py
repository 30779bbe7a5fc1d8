# SPDX-License-Identifier: Apache-2.0
"""Files that a user names: UTF-8, gzipped or not, and one sentence where they cannot be read."""

from __future__ import annotations

import gzip
import os
import secrets
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


@contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A new file beside this one, which takes its place when the block ends without an error.

    It is safe on the disk before that, and has the permissions of the old one. Raises ConfigError
    when it cannot be written; whatever the block raises leaves the old file as it was.
    """
    target = Path(os.path.realpath(file))  # a link goes on leading to it
    # The name ends like the other, because some writers choose a form by it.
    draft = target.with_name(f".{secrets.token_hex(4)}-{target.name[-200:]}")
    try:
        is_there = target.exists()
        if is_there and not (target.is_file() and os.access(target, os.W_OK)):
            raise PermissionError(0, "it is read-only, or no file")
        with draft.open("xb") as out:
            try:
                if is_there:
                    os.fchmod(out.fileno(), target.stat().st_mode & 0o7777)
                yield out
                out.flush()
                os.fsync(out.fileno())
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        reason = problem.strerror or problem
        raise ConfigError(f"cannot write {str(file)!r} ({reason}): it is unchanged") from problem


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
