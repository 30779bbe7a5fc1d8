# SPDX-License-Identifier: Apache-2.0
"""Commands over a graph: `depcache graph load|remove|stats|paths|link|build`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depcache.cli.ask import (
    AllowRepeats,
    AsJson,
    Hops,
    NumEntities,
    NumPaths,
    PrunerName,
    show,
)
from depcache.cli.graph_build import build
from depcache.cli.graphs import Graph, open_graph, open_retriever
from depcache.cli.output import make_console, make_progress, print_json, read_text, write_text
from depcache.errors import ConfigError, PromptError
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.graph.stores import open_store
from depcache.text_file import open_bytes, reading

if TYPE_CHECKING:
    from depcache.graph.base import GraphStore
    from depcache.graph.loading import GraphReader
    from depcache.graph.triples import Skipped

Changed = Annotated[
    Path | None,
    typer.Option(
        help="Write both ends of each edge that changed to this file, for `depcache invalidate "
        "--file`."
    ),
]

GraphFile = Annotated[
    Path,
    typer.Argument(
        help=".tsv, .txt, .jsonl, .csv, .json, .nt (also .gz), .ttl, .rdf, .graphml, .parquet, or "
        "a folder of Neo4j's or MS GraphRAG's."
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        help="Relation or property that holds the name of an entity; may be given several times, "
        "the best first. `name`, `label`, `rdfs:label` and similar ones are known."
    ),
]

graph_app = typer.Typer(help="Load, look at and build knowledge graphs.", no_args_is_help=True)


@graph_app.callback()
def _graph() -> None:
    pass


@graph_app.command("load")
def load(
    file: GraphFile,
    graph: Graph = DEFAULT_GRAPH,
    label: Label = None,
    aliases: Annotated[
        Path | None, typer.Option(help="Tab-separated lines: entity, other name.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail at the first malformed line.")
    ] = False,
    changed: Changed = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the counts to this file; - is stdout.")
    ] = None,
) -> None:
    """Add the triples of a file to a graph; triples that are there already change nothing."""
    from depcache.graph.triples import Skipped

    skipped = Skipped()
    started = time.perf_counter()
    with open_store(graph) as store, make_progress() as progress:
        if aliases is not None and not store.keeps_aliases:
            raise ConfigError(f"{store.url} has no place for --aliases: load it into a .db")
        task = progress.add_task("triples", total=_count_lines(file))
        reader = _open_reader(file, store, label, strict, skipped)
        change = store.upsert(
            reader, on_progress=lambda done: progress.update(task, completed=done)
        )
        labels = reader.aliases()
        if labels and store.keeps_aliases:
            store.add_aliases(labels)
        progress.update(task, total=progress.tasks[0].completed)
        unknown = store.add_aliases(_read_aliases(aliases)) if aliases else []
        seconds = time.perf_counter() - started
        counts = store.counts()
    if changed is not None:
        _write_names(changed, change.entities)
    answer = {
        "triples": counts.triples,
        "entities": counts.entities,
        "seconds": round(seconds, 3),
        "relations": counts.relations,
        "added": change.num_triples,
        "skipped": skipped.count,
        "problems": skipped.problems,
        "unknown_aliases": len(unknown),
        "version": change.version,
        "graph": store.url,
    }
    if json_file is not None:
        write_text(json_file, json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
        if str(json_file) == "-":
            return
    console = make_console()
    console.print(
        f"{change.num_triples:,} new triples in {seconds:.1f} s; {store.url} holds "
        f"{counts.triples:,} triples of {counts.entities:,} entities",
        markup=False,
    )
    _show_skipped(skipped)
    if store.url == "networkx:":
        console.print("it was held in memory: nothing of it is kept", style="yellow")
    if unknown:
        console.print(f"{len(unknown):,} aliases name no entity of the graph", style="yellow")


@graph_app.command("remove")
def remove(
    file: GraphFile,
    graph: Graph = DEFAULT_GRAPH,
    label: Label = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail at the first malformed line.")
    ] = False,
    changed: Changed = None,
    as_json: AsJson = False,
) -> None:
    """Remove the triples of a file from a graph; triples that are not there change nothing.

    An entity without edges is removed too.
    """
    from depcache.graph.triples import Skipped

    skipped = Skipped()
    with open_store(graph, must_exist=True) as store:
        change = store.remove(_open_reader(file, store, label, strict, skipped))
        counts = store.counts()
        url = store.url
    if changed is not None:
        _write_names(changed, change.entities)
    if as_json:
        print_json(
            {
                "triples": counts.triples,
                "entities": counts.entities,
                "removed": change.num_triples,
                "skipped": skipped.count,
                "problems": skipped.problems,
                "version": change.version,
                "graph": url,
            }
        )
        return
    console = make_console()
    console.print(
        f"{change.num_triples:,} triples are gone; {url} holds {counts.triples:,} triples of "
        f"{counts.entities:,} entities",
        markup=False,
    )
    _show_skipped(skipped)


@graph_app.command("stats")
def stats(graph: Graph = DEFAULT_GRAPH, as_json: AsJson = False) -> None:
    """Count what a graph holds."""
    with open_graph(graph) as store:
        counts = store.counts()
        answer = {
            "graph": store.url,
            "version": store.version(),
            "triples": counts.triples,
            "entities": counts.entities,
            "relations": counts.relations,
            "aliases": counts.aliases,
        }
    if as_json:
        print_json(answer)
        return
    for name, value in answer.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        make_console().print(f"{name:<10} {shown}", markup=False)


@graph_app.command("paths")
def paths(
    entity: Annotated[str, typer.Argument(help="Name of an entity.")],
    graph: Graph = DEFAULT_GRAPH,
    question: Annotated[str, typer.Option(help="Choose the paths for this question.")] = "",
    hops: Hops = 2,
    num_paths: NumPaths = 30,
    pruner: PrunerName = "none",
    allow_repeats: AllowRepeats = False,
    as_json: AsJson = False,
) -> None:
    """Show the paths around an entity; its name is found whatever its case and underscores."""
    with open_retriever(graph, pruner) as retriever:
        found = retriever.retrieve(
            question,
            entities=retriever.linker().find(entity) or [entity],
            num_hops=hops,
            num_paths=num_paths,
            allow_repeats=allow_repeats,
        )
    if not found.entities:
        raise PromptError(found.notes[0])
    show(found, as_json)


@graph_app.command("link")
def link(
    text: Annotated[str, typer.Argument(help="A question, or any text.")],
    graph: Graph = DEFAULT_GRAPH,
    num_entities: NumEntities = 10,
    as_json: AsJson = False,
) -> None:
    """Show which entities of a graph a text names, and where."""
    with open_retriever(graph, "none") as retriever:
        linker = retriever.linker()
        links = linker.link(text, max_entities=num_entities)
        nearest = [] if links else linker.nearest(text)
    if as_json:
        print_json({"links": [item._asdict() for item in links], "nearest": nearest})
        return
    console = make_console()
    for item in links:
        score = "" if item.score == 100 else f"  (similarity {item.score:.0f} of 100)"
        console.print(f"{item.entity}  {text[item.start : item.stop]!r}{score}", markup=False)
    if not links:
        hint = f"; the nearest are {', '.join(map(repr, nearest))}" if nearest else ""
        console.print(f"no entity of the graph is named{hint}", markup=False)


graph_app.command("build")(build)


def _show_skipped(skipped: Skipped) -> None:
    console = make_console()
    if skipped.count:
        console.print(f"{skipped.count:,} malformed lines were left out:", style="yellow")
        for problem in skipped.problems[:5]:
            console.print(f"  {problem}", markup=False)


def _write_names(file: Path, names: Iterable[str]) -> None:
    """One a line, as `depcache.precompute.entities.read_names` reads them."""
    lines = [name for name in sorted(names) if "\n" not in name and not name.endswith("\r")]
    left_out = set(names).difference(lines)
    write_text(file, "".join(f"{name}\n" for name in lines))
    if left_out:
        make_console(stderr=True).print(
            f"{len(left_out):,} names hold line breaks and are not in {str(file)!r}: give them to "
            "`depcache invalidate` with --entity",
            style="yellow",
            markup=False,
        )


def _open_reader(
    file: Path, store: GraphStore, label: list[str] | None, strict: bool, skipped: Skipped
) -> GraphReader:
    from depcache.graph.labels import known_identifiers
    from depcache.graph.loading import GraphReader

    known = known_identifiers(store.aliases(), store.names())
    return GraphReader(file, labels=label or (), known=known, strict=strict, skipped=skipped)


def _count_lines(file: Path) -> int | None:
    """Lines of a file, to show how far a load is; None where lines are no triples."""
    from depcache.graph.triples import has_triples_suffix

    if not has_triples_suffix(file):
        return None
    try:
        with reading(file), open_bytes(file) as lines:
            return sum(1 for _ in lines)
    except PromptError:
        return None  # reading the triples will say it


def _read_aliases(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, line in enumerate(read_text(file).split("\n"), 1):
        entity, tab, alias = line.rstrip("\r").partition("\t")
        if line.strip() and not (tab and entity.strip() and alias.strip()):
            raise ConfigError(
                f"line {number} of {str(file)!r} is no alias: write entity, tab, other name"
            )
        if tab:
            found.setdefault(entity, []).append(alias)
    return found
