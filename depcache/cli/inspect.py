# SPDX-License-Identifier: Apache-2.0
"""Commands that look and change nothing: `explain`, `schema`, `config show`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from depcache.cli.output import JSON_HELP, make_console, make_grid, print_json, read_text
from depcache.client.client import DEFAULT_URL, Client
from depcache.config import Config, load_config
from depcache.errors import PromptError, shorten
from depcache.prompt.render import render
from depcache.prompt.wire import make_schema

Server = Annotated[str, typer.Option(envvar="DEPCACHE_SERVER", help="Address of the server.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="DEPCACHE_API_KEY", help="Key of the server, if it has one.")
]
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


def explain(
    question: Annotated[str, typer.Argument(help="Question to ask about the paths.")] = "?",
    paths: Annotated[
        Path | None,
        typer.Option(help="JSON list of paths, JSON lines, or tab-separated lines; - is stdin."),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option(help="JSON body of a request to /v1/chat/completions or /generate instead."),
    ] = None,
    layout: Annotated[str, typer.Option(help="tree, staggered or sequential.")] = "tree",
    template: Annotated[str, typer.Option(help="How paths become text.")] = "path",
    server: Server = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show how a server would cut a prompt into segments and which it has cached."""
    if (paths is None) == (body is None):
        raise PromptError("nothing to explain: name a file with either --paths or --body")
    request: Any
    if body is not None:
        request = read_body(read_text(body))
    else:
        assert paths is not None
        wanted: Any = layout  # render refuses what is no layout, and names the choices
        request = render(
            read_paths_file(read_text(paths)), question, layout=wanted, template=template
        )
    with Client(server, api_key, timeout_s=120.0) as client:
        answer = client.explain(request)
    if as_json:
        print_json(answer)
    else:
        _print_explanation(answer)


def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of the dependency data in `custom_params`."""
    del as_json  # it is JSON either way
    print_json(make_schema())


config_app = typer.Typer(help="DepCache's settings.", no_args_is_help=True)


@config_app.callback()
def _config() -> None:
    pass


@config_app.command("show")
def config_show(as_json: AsJson = False) -> None:
    """Print the settings in force: defaults, then the file, then DEPCACHE_* variables."""
    config = load_config()
    if as_json:
        print_json(config.model_dump())
        return
    table = make_grid(3)
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        table.add_row(f"DEPCACHE_{name.upper()}", str(value), Text(field.description or "", "dim"))
    make_console().print(table, soft_wrap=False)


def read_paths_file(text: str) -> list[Any]:
    """Paths from a file: a JSON list, one JSON list a line, or tab-separated elements a line."""
    stripped = text.strip()
    if not stripped:
        raise PromptError("the file with paths is empty: write one path a line")
    try:
        if stripped.startswith("[["):
            return json.loads(stripped)
        if stripped.startswith(("[", "{")):
            # Not splitlines: a name may hold U+2028.
            return [json.loads(line) for line in stripped.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the file with paths is no JSON ({error}): correct it") from error
    lines = (line.removesuffix("\r") for line in stripped.split("\n"))
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [row for row in rows if row]


def read_body(text: str) -> dict[str, Any]:
    """A request body; PromptError when it is no JSON object."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the body is no JSON ({error}): correct it") from error
    if not isinstance(body, dict):
        raise PromptError(f"the body is {shorten(body)}: send a JSON object")
    return body


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print_explanation(answer: dict[str, Any]) -> None:
    table = Table("segment", "parent", "tokens", "position", "cached", "text", box=None)
    depths: dict[int, int] = {-1: -1}
    for row in answer.get("table") or []:
        depth = depths[row["segment"]] = depths.get(row["parent"], -1) + 1
        text = "  " * depth + repr(row.get("text") or "")[1:-1]
        cells = [row["segment"], row["parent"], row["num_tokens"], row["position"]]
        cached = _show(row.get("cached"))
        style = "green" if row.get("cached") else ""
        table.add_row(*map(str, cells), cached, Text(text, overflow="ellipsis"), style=style)
    console = make_console()
    if answer.get("table"):
        console.print(table, soft_wrap=False)
    counts = ("prompt_tokens", "context_tokens", "trees", "segments")
    reuse = ("shared", "shifted", "loaded", "missed", "on_disk", "plain", "tail")
    for names in (counts, reuse):
        console.print(", ".join(f"{name} {answer[name]}" for name in names if name in answer))
    for each in answer.get("unread_facts") or []:
        console.print(
            f"not read as facts: {each['count']} lines spelled {each['spelling']}, "
            f"as {each['example']!r}",
            markup=False,
        )
    if answer.get("fallback_reason"):
        console.print(f"served as a plain prompt: {answer['fallback_reason']}", markup=False)
