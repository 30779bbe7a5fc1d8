# SPDX-License-Identifier: Apache-2.0
"""`depcache invalidate`: after a change of a graph, give up the trees that can hold the change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depcache.cli.ask import AsJson, Hops, Server
from depcache.cli.graphs import Graph
from depcache.cli.output import make_console, make_progress, print_json
from depcache.cli.precompute import (
    Messages,
    System,
    SystemFile,
    TemplateName,
    read_messages,
    read_system,
)
from depcache.client.client import DEFAULT_URL, Client
from depcache.errors import PromptError
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.graph.stores import open_store
from depcache.prompt.render import DEFAULT_CHUNK_SYSTEM

if TYPE_CHECKING:
    from depcache.precompute import Invalidation

MAX_SHOWN = 20


def invalidate(
    graph: Graph = DEFAULT_GRAPH,
    entity: Annotated[
        list[str] | None,
        typer.Option(help="End of an edge that is new or gone; may be given several times."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="The same, one a line, as `graph load --changed` writes them."),
    ] = None,
    chunks: Annotated[
        Path | None,
        typer.Option(
            help="Text chunks instead of a graph: their file as it was when they were computed. "
            "--entity and --file name ids of chunks."
        ),
    ] = None,
    server: Server = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DEPCACHE_API_KEY", help="The server's admin key, or else its key."),
    ] = None,
    hops: Hops = 2,
    system: System = None,
    system_file: SystemFile = None,
    messages: Messages = None,
    template: TemplateName = "path",
    salt: Annotated[
        str | None, typer.Option(help="Drop only the trees of the tenant with this `cache_salt`.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="State file of `precompute`; its next run computes these entities again."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only name the entities that are affected.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the cached trees that a change of the graph touches, and no others, in every tier.

    Name both ends of each edge that was added or removed. The graph may be the one before or after
    the change. Trees are dropped in all position layouts. Give the same text before the facts as
    `precompute` and your requests do.

    This frees memory; correctness does not need it. KV is found by the tokens of its path, so no
    answer uses the KV of a fact that has changed.
    """
    from depcache.precompute import PrecomputeSettings, find_trees
    from depcache.precompute import invalidate as invalidate_trees
    from depcache.precompute.entities import read_names

    names = list(entity or ())
    if file is not None:
        names += read_names(file)
    if not names and file is None:
        raise PromptError("nothing to invalidate: name entities with --entity or --file")
    if chunks is not None:
        _invalidate_chunks(
            chunks, names, server, api_key, system, system_file, salt, state, dry_run, as_json
        )
        return
    settings = PrecomputeSettings(
        num_hops=hops,
        pruner="none",
        system=read_system(system, system_file),
        template=template,
        messages=None if messages is None else read_messages(messages),
        fields={} if salt is None else {"cache_salt": salt},
    )
    # It may be empty by now, but a wrong path would call everything gone.
    with open_store(graph, must_exist=True) as store:
        if dry_run:
            found = find_trees(store, names, hops, state=state)
        else:
            with Client(server, api_key) as client, make_progress() as progress:
                task = progress.add_task("entities", total=None)
                found = invalidate_trees(
                    store,
                    client,
                    names,
                    settings,
                    state=state,
                    on_progress=lambda now: progress.update(
                        task, total=len(now.entities), completed=now.num_done + now.num_refused
                    ),
                )
        url = store.url
    if as_json:
        print_json({**found.to_json(), "dry_run": dry_run, "graph": url})
    else:
        _show(found, dry_run)


def _invalidate_chunks(
    file: Path,
    names: list[str],
    server: str,
    api_key: str | None,
    system: str | None,
    system_file: Path | None,
    salt: str | None,
    state: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from depcache.precompute import invalidate_chunks, read_chunks

    if dry_run:
        raise PromptError("--dry-run is of graphs: with --chunks the ids themselves are affected")
    text = read_system(system, system_file, DEFAULT_CHUNK_SYSTEM)
    fields = {} if salt is None else {"cache_salt": salt}
    with Client(server, api_key) as client:
        found = invalidate_chunks(
            read_chunks(file), client, names, system=text, fields=fields, state=state
        )
    if as_json:
        print_json({**found.to_json(), "dry_run": False, "chunks": str(file)})
    else:
        _show(found, dry_run)


def _show(found: Invalidation, dry_run: bool) -> None:
    console = make_console()
    num = len(found.entities)
    verb = "are" if dry_run else "were"
    if dry_run:
        for name in found.entities[:MAX_SHOWN]:
            console.print(name, markup=False)
        if num > MAX_SHOWN:
            console.print(f"and {num - MAX_SHOWN:,} more, all of them with --json", style="dim")
        console.print(f"{num:,} entities are affected")
    else:
        tiers = ", ".join(f"{tokens:,} on {tier}" for tier, tokens in found.tokens.items())
        given_up = tiers.replace("on host", "in host memory")
        if not any(found.tokens.values()):
            given_up = "none, since the server held none of theirs" if num else "none"
        console.print(f"{num:,} entities are affected; tokens given up: {given_up}")
    if found.num_gone and found.num_gone == found.num_named:
        console.print(
            f"none of the {found.num_named:,} that were named {verb} in the graph: check the "
            "names, unless it was their last edges that went",
            style="yellow",
        )
    elif found.num_gone:
        console.print(
            f"{found.num_gone:,} of the {found.num_named:,} that were named {verb} not in the graph"
        )
    show_rest(found, dry_run)


def show_rest(found: Invalidation, dry_run: bool) -> None:
    """What will be computed again, what is in use, and what went wrong."""
    console = make_console()
    if found.num_forgotten is not None:
        will = "would be" if dry_run else "will be"
        console.print(f"{found.num_forgotten:,} {will} computed again by precompute")
    if found.in_use:
        console.print(
            f"{found.in_use:,} tokens stay, in use by requests: ask again", style="yellow"
        )
    for problem in found.problems[:5]:
        console.print(f"left out: {problem}", style="yellow", markup=False)
