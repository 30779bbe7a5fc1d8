# SPDX-License-Identifier: Apache-2.0
"""How every command speaks: people read stdout, programs read `--json`, errors are one sentence.

Exit codes
    0    done; for `doctor`: all is in place
    1    `doctor` found a problem
    2    the call, a prompt or a setting is wrong
    3    a server could not be reached, would not start, or failed
    130  interrupted (and 143: terminated)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from depcache.errors import ConfigError, DepCacheError, PromptError

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_SERVER = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

JSON_HELP = "Print JSON for programs instead."


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
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(error: DepCacheError) -> None:
    """One sentence on stderr."""
    make_console(stderr=True).print(f"depcache: {error}", style="red", markup=False)


def exit_code_of(error: DepCacheError) -> int:
    """The documented exit code of an error."""
    return EXIT_USAGE if isinstance(error, PromptError | ConfigError) else EXIT_SERVER


def read_text(path: Path) -> str:
    """A file the user named, "-" being stdin; PromptError when it cannot be read."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read {str(path)!r} ({error}): check the path") from error


def write_text(path: Path, text: str) -> None:
    """Write a file the user named, "-" being stdout; ConfigError when it cannot be written."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r} ({error}): check the path") from error
