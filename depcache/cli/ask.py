# SPDX-License-Identifier: Apache-2.0
"""`depcache ask`: a question, its facts or tables, the answer, and what was reused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from depcache.cli.graphs import Graph, open_retriever
from depcache.cli.output import JSON_HELP, exit_code_of, make_console, print_error, print_json
from depcache.client.client import DEFAULT_URL, Client
from depcache.errors import ConfigError, DepCacheError, PromptError, ServerError
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.text_file import reading

if TYPE_CHECKING:
    from depcache.client.reply import Reply
    from depcache.client.stream import ReplyStream
    from depcache.graph.retrieval import Retrieved
    from depcache.prompt.paths import Path

Server = Annotated[str, typer.Option(envvar="DEPCACHE_SERVER", help="Address of the server.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="DEPCACHE_API_KEY", help="Key of the server, if it has one.")
]
Hops = Annotated[int, typer.Option(min=1, help="Edges of the longest path.")]
NumPaths = Annotated[int, typer.Option("--paths", min=1, help="Paths of each entity.")]
NumEntities = Annotated[int, typer.Option("--entities", min=1, help="Entities of a question.")]
PrunerName = Annotated[
    str,
    typer.Option(
        "--pruner",
        help="How paths are chosen where there are more: words, none, minilm (better; takes "
        "seconds to load), or auto, minilm where it is installed.",
    ),
]
AllowRepeats = Annotated[
    bool,
    typer.Option("--allow-repeats", help="Let paths visit an entity twice and use self-loops."),
]
AsJson = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


DEFAULT_PRUNER = "words"  # it needs no torch

PROMPT = "question> "


def ask(
    question: Annotated[
        str, typer.Argument(help="What to ask; - reads one question a line from stdin.")
    ],
    graph: Graph = DEFAULT_GRAPH,
    server: Server = DEFAULT_URL,
    api_key: ApiKey = None,
    hops: Hops = 2,
    num_paths: NumPaths = 30,
    num_entities: NumEntities = 10,
    pruner: PrunerName = DEFAULT_PRUNER,
    layout: Annotated[str, typer.Option(help="tree, staggered or sequential.")] = "tree",
    allow_repeats: AllowRepeats = False,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128,
    tables: Annotated[
        FilePath | None,
        typer.Option(help="A catalog: ask about its tables, not about a graph, and get SQL."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Table of --tables to ask about, or a pattern like order*; several times. All if "
            "none is named."
        ),
    ] = None,
    sees: Annotated[
        str,
        typer.Option(
            help="What a table of --tables sees beside itself: nothing, references (the tables "
            "that it refers to) or component (all before it that hang together with it)."
        ),
    ] = "references",
    as_json: AsJson = False,
) -> None:
    """Answer a question from a graph's facts about the entities that it names.

    With --tables, answer it from tables of a catalog and those that they refer to.

    With -, the graph and the connection stay open from question to question; in a terminal, Ctrl-D
    ends. A refused question is reported and the next one is asked. --json prints one line each.
    """
    if tables is not None:
        with Client(server, api_key) as client:
            about = _about_tables(client, tables, table, sees, layout, max_tokens)
            _ask_all(question, about, as_json)
        return
    if table:
        raise ConfigError(f"--table {table[0]!r} is of no catalog: name the catalog with --tables")

    def retrieve(text: str) -> Retrieved:
        return retriever.retrieve(text, num_entities, hops, num_paths, allow_repeats=allow_repeats)

    with open_retriever(graph, pruner) as retriever, Client(server, api_key) as client:
        _ask_all(question, _about_graph(client, retrieve, layout, max_tokens), as_json)


Answer = Callable[[str, bool], dict[str, Any]]
"""From a question, and whether nothing is to be printed, to what `--json` prints."""


def _about_graph(
    client: Client, retrieve: Callable[[str], Retrieved], layout: Any, max_tokens: int
) -> Answer:
    def answer(text: str, is_quiet: bool) -> dict[str, Any]:
        found = retrieve(text)
        if not is_quiet:
            show(found, as_json=False)
        # The client refuses what is no layout, and names the choices.
        stream = client.ask(found.paths, text, stream=True, layout=layout, max_tokens=max_tokens)
        reply = _print_stream(stream, is_quiet=is_quiet)
        if not is_quiet:
            _show_reuse(reply, has_context=bool(found.paths))
        return _to_json(found) | _reply_to_json(reply)

    return answer


def _about_tables(
    client: Client,
    file: FilePath,
    names: list[str] | None,
    sees: Any,
    layout: Any,
    max_tokens: int,
) -> Answer:
    from depcache.tables.catalog import Catalog
    from depcache.tables.render import render_tables

    catalog = Catalog.read(file)

    def answer(text: str, is_quiet: bool) -> dict[str, Any]:
        # What is no layout, or nothing that a table can see, is refused here by name.
        prompt = render_tables(catalog, names or None, text, sees=sees, layout=layout)
        if not is_quiet:
            make_console().print(f"tables: {', '.join(prompt.tables)}", markup=False)
            if prompt.left_out:
                absent = ", ".join(prompt.left_out)
                make_console().print(f"referred to, and not there: {absent}", markup=False)
        stream = client.chat(
            prompt.messages, stream=True, max_tokens=max_tokens, **prompt.extra_body
        )
        reply = _print_stream(stream, is_quiet=is_quiet)
        if not is_quiet:
            _show_reuse(reply, has_context=True)
        told = {name: list(getattr(prompt, name)) for name in ("tables", "added", "left_out")}
        return told | {"sees": prompt.sees} | _reply_to_json(reply)

    return answer


def _ask_all(question: str, answer: Answer, as_json: bool) -> None:
    """Answer one question, or each line of stdin."""
    if question != "-":
        found = answer(question, as_json)
        if as_json:
            print_json(found)
        return
    refused: DepCacheError | None = None
    num_asked = 0
    for text in _read_questions():
        num_asked += 1
        try:
            found = answer(text, as_json)
        except (PromptError, ServerError) as error:
            # Who sits at a terminal may start the server now; a list of questions is given up.
            if isinstance(error, ServerError) and not sys.stdin.isatty():
                raise
            refused = error
            print_error(error)
            continue
        if as_json:
            print(json.dumps(found, ensure_ascii=False), flush=True)
    if not num_asked:
        raise PromptError("stdin holds no question: write one a line")
    if refused is not None and not sys.stdin.isatty():
        raise typer.Exit(exit_code_of(refused))


def _read_questions() -> Iterator[str]:
    """The lines of stdin that are not blank; asked for at a terminal."""
    if not sys.stdin.isatty():
        with reading("-"):
            yield from (line.strip() for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):
        import_module("readline")  # arrow keys and a history, where Python has it
    while True:
        if is_piped := not sys.stdout.isatty():
            print(PROMPT, end="", file=sys.stderr, flush=True)
        try:
            text = input("" if is_piped else PROMPT).strip()
        except EOFError:
            print(file=sys.stderr)
            return
        if text:
            yield text


def _print_stream(stream: ReplyStream, *, is_quiet: bool) -> Reply:
    """Wait for the answer, and print it as it comes unless `is_quiet`."""
    console = make_console()
    with stream:
        for piece in stream:
            if not is_quiet:
                console.print(piece, end="", markup=False)
        return stream.finish()


def _show_reuse(reply: Reply, *, has_context: bool) -> None:
    console = make_console()
    report = reply.depcache
    console.print("\n")
    if report is None:
        why = (
            "the server runs without DepCache: nothing is known of reuse"
            if has_context
            else "no facts were found, so the question went out alone"
        )
        console.print(why, style="dim")
        return
    console.print(
        f"{report.prompt_tokens:,} prompt tokens: {report.reused:,} reused, "
        f"{report.computed:,} computed; first token after "
        f"{(reply.ttft_s or reply.total_s) * 1000:.0f} ms",
        style="dim",
    )
    if report.fallback_reason:
        console.print(f"served as a plain prompt: {report.fallback_reason}", markup=False)


def _reply_to_json(reply: Reply) -> dict[str, Any]:
    report = reply.depcache
    return {
        "answer": reply.text,
        "usage": {name: getattr(reply.usage, name) for name in reply.usage.__slots__},
        "depcache": report and {name: getattr(report, name) for name in report.__slots__},
        "ttft_s": reply.ttft_s,
        "total_s": reply.total_s,
    }


def show(found: Retrieved, as_json: bool) -> None:
    """Paths as trees, notes and times; or JSON."""
    if as_json:
        print_json(_to_json(found))
        return
    console = make_console()
    for tree in make_trees(found.paths):
        console.print(tree)
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    timings = ", ".join(f"{name} {ms:.1f} ms" for name, ms in found.timings_ms.items())
    console.print(f"{len(found.paths)} paths ({timings})\n", style="dim")


def _to_json(found: Retrieved) -> dict[str, Any]:
    return {
        "entities": list(found.entities),
        "links": [item._asdict() for item in found.links],
        "paths": [list(path) for path in found.paths],
        "timings_ms": {name: round(ms, 3) for name, ms in found.timings_ms.items()},
        "notes": list(found.notes),
    }


def make_trees(paths: Iterable[Path]) -> list[Tree]:
    """Paths as trees for a screen, one per entity; equal beginnings are shown once."""
    roots: dict[Path, Tree] = {}
    branches: dict[Path, Tree] = {}
    for path in paths:
        root = path[:1]
        if root not in roots:
            branches[root] = roots[root] = Tree(Text(path[0], "bold"))
        for stop in range(3, len(path) + 1, 2):
            if path[:stop] not in branches:
                label = Text.assemble((f"{path[stop - 2]} ", "dim"), path[stop - 1])
                branches[path[:stop]] = branches[path[: stop - 2]].add(label)
    return list(roots.values())
