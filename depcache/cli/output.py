# SPDX-License-Identifier: Apache-2.0
"""How every command speaks: people read stdout, programs read `--json`, errors are one sentence.

Exit codes
    0    done; for `doctor`: all is in place
    1    `doctor` found a problem
    2    the call, a prompt, a file or a setting is wrong, or the output cannot be written
    3    a server could not be reached, would not start, or failed
    130  interrupted (and 143: terminated)
    141  nobody reads the output any more (`| head`); nothing is said
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from depcache.errors import ConfigError, DepCacheError, PromptError
from depcache.text_file import reading

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_SERVER = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_UNREAD = 141  # as a shell says it of a program that SIGPIPE ended

JSON_HELP = "Print JSON for programs instead."


class CheckedOutput:
    """A stream in the place of stdout that ends the command when nothing can be written.

    Quietly if its reader went away (`| head`); else with a ConfigError, a full disk for example.
    All that prints passes here: our commands, rich, and typer's help.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._give_up()
            sys.exit(EXIT_UNREAD)
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the output cannot be written ({error}): set PYTHONIOENCODING=utf-8"
            ) from error
        except OSError as error:
            self._give_up()
            raise ConfigError(
                f"the output cannot be written ({error.strerror}): send it elsewhere"
            ) from error

    def _give_up(self) -> None:
        # What is still in the stream's buffer is written once more at Python's end.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def make_console(*, stderr: bool = False) -> Console:
    """A console on the stream of this moment; plain text where it is no terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def make_grid(num_columns: int) -> Table:
    """A table without lines, whose long words are folded and never cut."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(num_columns):
        grid.add_column(overflow="fold")
    return grid


def make_progress(console: Console | None = None) -> Progress:
    """A bar on this console or on stderr; nothing at all where that is no terminal."""
    console = console or make_console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_error(error: DepCacheError) -> None:
    """One sentence on stderr."""
    make_console(stderr=True).print(f"depcache: {error}", style="red", markup=False)


def exit_code_of(error: DepCacheError) -> int:
    """The documented exit code of an error."""
    return EXIT_USAGE if isinstance(error, PromptError | ConfigError) else EXIT_SERVER


def read_text(path: Path) -> str:
    """A file the user named, "-" being stdin; PromptError when it cannot be read."""
    with reading(path):
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a file the user named, "-" being stdout; ConfigError when it cannot be written."""
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r} ({error}): check the path") from error
