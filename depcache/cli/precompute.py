# SPDX-License-Identifier: Apache-2.0
"""`depcache precompute`: fill a running server's cache with trees of a graph, or chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from depcache.cli.ask import DEFAULT_PRUNER, AllowRepeats, ApiKey, AsJson, Hops, PrunerName, Server
from depcache.cli.graphs import Graph, open_graph
from depcache.cli.output import make_console, make_grid, print_json, read_text
from depcache.client.client import DEFAULT_URL, Client
from depcache.errors import PromptError
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.prompt.render import DEFAULT_CHUNK_SYSTEM, DEFAULT_SYSTEM

if TYPE_CHECKING:
    from depcache.precompute import Estimate, PrecomputePlan, Precomputer, PrecomputeReport
    from depcache.precompute import Progress as Moment
    from depcache.precompute.chunk_file import Chunk
    from depcache.precompute.neighbours import Neighbours

System = Annotated[str | None, typer.Option(help="System message of later requests; '' for none.")]
SystemFile = Annotated[
    Path | None, typer.Option(help="File with the system message, used byte for byte; - is stdin.")
]
Messages = Annotated[
    Path | None,
    typer.Option(
        help="JSON list of a chat's messages, with {{graph_context}} where the facts go, for "
        "programs that write their own prompts."
    ),
]
TemplateName = Annotated[str, typer.Option("--template", help="How paths become text.")]

_OF_GRAPHS = (
    *("graph", "entities", "entity", "hops", "num_paths", "pruner"),
    *("allow_repeats", "messages", "template", "layout"),
)
"""Parameters of the command that say nothing of chunks."""


def precompute(
    context: typer.Context,
    graph: Graph = DEFAULT_GRAPH,
    entities: Annotated[
        str | None,
        typer.Option(
            help="top:N (the N with most edges), all, or file:PATH (one name a line). "
            "Default: top:1000, unless --entity names some."
        ),
    ] = None,
    entity: Annotated[
        list[str] | None, typer.Option(help="Name of an entity; may be given several times.")
    ] = None,
    chunks: Annotated[
        Path | None,
        typer.Option(
            help="Text chunks instead of a graph: JSON lines with id and text, gzipped or not."
        ),
    ] = None,
    behind: Annotated[
        str,
        typer.Option(
            "--source",
            help="What chunks are computed behind: alone (the system), previous (the chunk "
            "before in the document, by its number) or similar (the chunks most like it).",
        ),
    ] = "alone",
    similar: Annotated[
        int | None,
        typer.Option(min=1, help="With --source similar: how many chunks (default 10)."),
    ] = None,
    similar_by: Annotated[
        str | None,
        typer.Option(
            help="With --source similar: minilm (default; the extra `embed`), or a file of JSON "
            "lines with id and neighbours, ids of which the last is the most similar.",
        ),
    ] = None,
    server: Server = DEFAULT_URL,
    api_key: ApiKey = None,
    hops: Hops = 2,
    num_paths: Annotated[
        int | None,
        typer.Option(
            "--paths",
            min=1,
            help="Most paths of each entity. Default: 30 with pruner none, as for `ask`. Any other "
            "pruner depends on the question, so every path is computed, up to 10000.",
        ),
    ] = None,
    pruner: PrunerName = DEFAULT_PRUNER,
    allow_repeats: AllowRepeats = False,
    system: System = None,
    system_file: SystemFile = None,
    messages: Messages = None,
    template: TemplateName = "path",
    layout: Annotated[str, typer.Option(help="tree, staggered or sequential.")] = "tree",
    salt: Annotated[str | None, typer.Option(help="The `cache_salt` of later requests.")] = None,
    state: Annotated[
        Path, typer.Option(help="File that keeps the progress; rerun with it to resume.")
    ] = Path("depcache-precompute.jsonl"),
    request_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one request.")] = 4096,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 4,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only estimate the work, and do none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the KV of entities' paths now, or of text chunks, so that later questions find it.

    The text before a fact decides its KV. So give the options that `ask` and your programs use:
    system message, template, layout, salt, and retrieval. Of chunks: system message and salt.
    """
    from depcache.precompute import (
        ChunkSource,
        GraphSource,
        Precomputer,
        PrecomputeSettings,
        read_chunks,
        select_entities,
    )
    from depcache.precompute.entities import DEFAULT_ENTITIES, require_entities

    fields = {} if salt is None else {"cache_salt": salt}
    console = make_console(stderr=as_json)
    about: dict[str, str] = {}
    names: list[str] | None = None
    with ExitStack() as stack:
        if chunks is not None:
            _refuse_options(context, _OF_GRAPHS, "is of graphs: leave it out beside --chunks")
            text = read_system(system, system_file, DEFAULT_CHUNK_SYSTEM)
            rows = read_chunks(chunks)
            found = _find_behind(rows, behind, similar, similar_by)
            source = ChunkSource(rows, behind=found, system=text, fields=fields)
            where = {"file": str(chunks)}
        else:
            of_chunks = ("behind", "similar", "similar_by")
            _refuse_options(context, of_chunks, "is of chunks: leave it out, or give --chunks")
            wanted: Any = layout  # the settings refuse what is no layout, and name the choices
            settings = PrecomputeSettings(
                num_hops=hops,
                num_paths=num_paths,
                pruner=pruner,
                allow_repeats=allow_repeats,
                system=read_system(system, system_file, DEFAULT_SYSTEM),
                template=template,
                layout=wanted,
                messages=None if messages is None else read_messages(messages),
                fields=fields,
            )
            store = stack.enter_context(open_graph(graph))
            names = list(entity or ())
            require_entities(store, names)
            if entities is not None or not names:
                names += select_entities(store, entities or DEFAULT_ENTITIES)
            source = GraphSource(store, settings)
            about["paths"] = f"up to {settings.max_paths:,} each, of up to {hops} edges"
            where = {"graph": store.url}
        client = stack.enter_context(Client(server, api_key))
        job = Precomputer(source, client, state=state, request_tokens=request_tokens)
        plan = job.plan(names)
        for note in plan.notes:
            console.print(f"note: {note}", style="yellow", markup=False)
        if not as_json or not estimate:
            show_estimate(plan.estimate, about, stderr=as_json)
        if estimate:
            if as_json:
                print_json({"estimate": plan.estimate.to_json(), "notes": list(plan.notes)})
            return
        report = run_job(job, plan, concurrency)
        if plan.names and report.failures.get("unknown") == len(plan.names):
            raise PromptError(
                f"none of the {len(plan.names):,} entities of {entities!r} is in the graph "
                f"{where['graph']}: check the names"
            )
    if as_json:
        answer = {"estimate": plan.estimate.to_json(), "notes": list(plan.notes)}
        print_json({**report.to_json(), **answer, **where, "state": str(state)})
    else:
        show_report(report)


def _find_behind(
    chunks: Sequence[Chunk], source: str, number: int | None, by: str | None
) -> str | Neighbours:
    """What the chunks are computed behind, as `ChunkSource` takes it."""
    from depcache.precompute.neighbours import NUM_SIMILAR, find_similar, read_neighbours

    if source != "similar":
        if number is not None or by is not None:
            raise PromptError("--similar and --similar-by go with --source similar: add it")
        return source
    number = number or NUM_SIMILAR
    if by in (None, "minilm"):
        return find_similar(chunks, number)
    return read_neighbours(by, chunks, number)


def read_system(system: str | None, file: Path | None, default: str = DEFAULT_SYSTEM) -> str:
    """The system message that two options name, or the default; PromptError for both of them."""
    if system is not None and file is not None:
        raise PromptError("both --system and --system-file are given: leave out one")
    if file is not None:
        return read_text(file)
    return default if system is None else system


def read_messages(file: Path) -> list[dict[str, Any]]:
    """The messages of a chat in a JSON file; PromptError when it holds none."""
    text = read_text(file)
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{str(file)!r} is no JSON ({error}): correct it") from error
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise PromptError(f"{str(file)!r} is no list of messages: write [{{'role': ..., ...}}]")
    return messages


def _refuse_options(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raise PromptError for the first of these parameters that was given on the command line."""
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name in names and source is not None and source.name == "COMMANDLINE":
            raise PromptError(f"{param.opts[0]} {why}")


def run_job(job: Precomputer, plan: PrecomputePlan, concurrency: int) -> PrecomputeReport:
    """Do what is pending, under a bar; an interrupt says how far it came."""
    try:
        with _open_bar(plan) as on_progress:
            return job.run(plan, num_workers=concurrency, on_progress=on_progress)
    except (KeyboardInterrupt, SystemExit):
        make_console(stderr=True).print(
            f"stopped: {job.report.num_done:,} of {len(plan.names):,} {job.report.items} are done, "
            "the same command again goes on there",
            markup=False,
        )
        raise


def show_estimate(estimate: Estimate, about: Mapping[str, str], *, stderr: bool) -> None:
    """Print it; `about` has further rows, by name."""
    console = make_console(stderr=stderr)
    guess = "" if estimate.is_exact else "about "
    grid = make_grid(2)
    done = f", of which {estimate.num_done:,} are done" if estimate.num_done else ""
    grid.add_row(estimate.words.items, f"{estimate.num_wanted:,}{done}")
    for name, text in about.items():
        grid.add_row(name, text)
    cached = f", of which {guess}{estimate.num_cached:,} are cached" if estimate.num_cached else ""
    grid.add_row("tokens", f"{guess}{estimate.num_tokens:,}{cached}")
    if estimate.num_bytes is not None:
        each = f"{estimate.bytes_per_token:,} bytes a token"
        grid.add_row("KV", f"{guess}{_show_bytes(estimate.num_bytes)}, {each}")
    for tier in estimate.tiers:
        room = "unknown" if tier.capacity_tokens is None else f"{tier.capacity_tokens:,} tokens"
        grid.add_row(tier.name, f"room for {room}, {tier.num_tokens:,} used")
    console.print(grid, soft_wrap=False)
    if estimate.warning:
        console.print(f"warning: {estimate.warning}", style="yellow", markup=False)


def show_report(report: PrecomputeReport) -> None:
    """Print what was computed, and what was left out."""
    console = make_console()
    rate = report.num_missed / report.seconds if report.seconds else 0.0
    size = "" if report.num_bytes is None else f" ({_show_bytes(report.num_bytes)})"
    console.print(
        f"{report.num_missed:,} tokens computed{size}, {report.num_cached:,} were cached; "
        f"{report.num_computed:,} {report.items} in {report.seconds:.1f} s, {rate:,.0f} tokens/s",
        markup=False,
    )
    before = report.num_resumed + report.num_unchanged
    if before:
        console.print(f"{before:,} {report.items} were done before")
    if report.num_persisted is not None:
        console.print(f"{report.num_persisted:,} tokens were still to be written to the disk tier")
    if report.num_failed:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(report.failures.items()))
        console.print(
            f"{report.num_failed:,} {report.items} were left out: {reasons}", style="yellow"
        )
        for problem in report.problems[:5]:
            console.print(f"  {problem}", markup=False)


@contextmanager
def _open_bar(plan: PrecomputePlan) -> Iterator[Callable[[Moment], None]]:
    """A bar on stderr; nothing at all where that is no terminal."""
    console = make_console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    # Only what is to be done: what was done before would make the time left too short.
    num_before = len(plan.names) - len(plan.pending)
    with bar:
        task = bar.add_task(plan.estimate.words.items, total=len(plan.pending), rate=0.0)

        def show(now: Moment) -> None:
            completed = now.num_done + now.num_failed - num_before
            bar.update(task, completed=completed, rate=now.tokens_per_s)

        yield show


def _show_bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
