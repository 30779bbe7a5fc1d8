# SPDX-License-Identifier: Apache-2.0
"""`depcache recognise`: which rows of a prompt are facts, which are not, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from depcache.cli.output import JSON_HELP, make_console, print_json, read_text
from depcache.recognition.recognise import DEADLINE_S, Recognised, recognise
from depcache.recognition.texts import text_of

MAX_SHOWN = 20
MAX_EXAMPLE = 60


def recognise_file(
    file: Annotated[
        Path,
        typer.Argument(help="JSON of messages or of a request, or a text; - is stdin."),
    ],
    names: Annotated[
        list[str] | None,
        typer.Option("--only", help="Name of a recogniser; may be given several times."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Give up on a prompt after this time.")
    ] = DEADLINE_S,
    show_all: Annotated[bool, typer.Option("--all", help="Show every row.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Say which rows of a prompt are recognised as facts, which are not, and why."""
    prompt = read_prompt(read_text(file))
    found = recognise(prompt, names, deadline_s=seconds)
    if as_json:
        print_json(to_json(found))
    else:
        _print(found, prompt, None if show_all else MAX_SHOWN)


def read_prompt(text: str) -> str | list[Any]:
    """The messages or the text of a request's JSON; what is neither is a text itself."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(data, dict):
        for key in ("messages", "prompt", "text"):
            if isinstance(data.get(key), list if key == "messages" else str):
                return data[key]
    if isinstance(data, list) and any(isinstance(each, dict) and "role" in each for each in data):
        return data
    return text


def to_json(found: Recognised) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "outline": None if found.outline is None else found.outline.to_json(),
        "reason": found.reason,
        "rows": [
            {"start": row.start, "stop": row.stop, "name": row.name, "kind": row.kind}
            for row in found.rows
        ],
        "unread": [
            {
                "message": rows.message,
                "start": rows.start,
                "stop": rows.stop,
                "rows": rows.num_rows,
                "name": rows.name,
                "reason": rows.reason,
            }
            for rows in found.unread
        ],
    }


def _print(found: Recognised, prompt: str | list[Any], max_shown: int | None) -> None:
    console = make_console()
    if found.outline is None:
        console.print(f"no outline: {found.reason}", style="yellow", markup=False)
    else:
        outline = found.outline
        where = "the text" if outline.message is None else f"message {outline.message}"
        console.print(
            f"{len(found.rows)} rows of facts in {where}, characters {outline.start} to "
            f"{outline.stop} of {len(found.text)}; with what stands between, "
            f"{outline.num_rows} rows"
        )
        table = Table("recogniser", "kind", "at", "row", box=None)
        for row in found.rows[:max_shown]:
            table.add_row(
                row.name, row.kind, str(row.start), _example(found.text[row.start : row.stop])
            )
        console.print(table, soft_wrap=False)
        _print_more(len(found.rows), max_shown)
    if found.unread:
        console.print("\nnot read")
        table = Table("recogniser", "rows", "message", "at", "why", "begins with", box=None)
        for rows in found.unread[:max_shown]:
            text = prompt if isinstance(prompt, str) else text_of(prompt[rows.message or 0]) or ""
            table.add_row(
                rows.name,
                str(rows.num_rows),
                "" if rows.message is None else str(rows.message),
                str(rows.start),
                rows.reason,
                _example(text[rows.start : rows.start + 2 * MAX_EXAMPLE]),
            )
        console.print(table, soft_wrap=False)
        _print_more(len(found.unread), max_shown)


def _print_more(number: int, max_shown: int | None) -> None:
    if max_shown is not None and number > max_shown:
        make_console().print(f"and {number - max_shown} more (--all shows them)", style="dim")


def _example(text: str) -> Text:
    """The beginning of a row, without what would move a terminal's cursor."""
    words: Iterable[str] = text[: 2 * MAX_EXAMPLE].split()
    shown = "".join(each if each.isprintable() else "�" for each in " ".join(words))
    return Text(shown if len(shown) <= MAX_EXAMPLE else shown[: MAX_EXAMPLE - 3] + "...")
