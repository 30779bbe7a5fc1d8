# SPDX-License-Identifier: Apache-2.0
"""`depcache graph build`: a graph from documents, read by a language model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depcache.cli.ask import ApiKey, AsJson, Server
from depcache.cli.graphs import Graph
from depcache.cli.output import make_console, make_progress, print_json, read_text, write_text
from depcache.client.client import DEFAULT_URL as DEFAULT_SERVER
from depcache.errors import PromptError
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.graph.stores import open_store

if TYPE_CHECKING:
    from depcache.graph.extraction import Extracted

SHOWN_PROBLEMS = 3


def build(
    files: Annotated[
        list[Path], typer.Argument(help="Text files, or .jsonl with a `text` and a `title` each.")
    ],
    graph: Graph = DEFAULT_GRAPH,
    server: Server = DEFAULT_SERVER,
    model: Annotated[str, typer.Option(help="Name of the model at the server.")] = "default",
    api_key: ApiKey = None,
    state: Annotated[
        Path, typer.Option(help="File that keeps the progress; rerun with it to resume.")
    ] = Path("depcache-build.jsonl"),
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Words and punctuation marks per chunk.")
    ] = 512,
    workers: Annotated[int, typer.Option(min=1, help="Chunks read at a time.")] = 4,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer for one chunk, in tokens.")
    ] = 2048,
    out: Annotated[
        Path | None, typer.Option(help="Write the triples to this .jsonl file, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Extract triples from documents with a language model, and add them to a graph.

    Progress is kept in --state; rerun to resume. A rerun also asks again about chunks whose answers
    could not be used. The exit code is 1 if no triple was found.
    """
    from depcache.graph.extraction import extract_all, make_chunks
    from depcache.graph.openai_extractor import OpenAIExtractor

    chunks = list(make_chunks(_read_documents(files), max_tokens=chunk_tokens))
    if not chunks:
        names = ", ".join(repr(str(file)) for file in files)
        raise PromptError(f"there is no text in {names}: name files that hold some")
    extractor = OpenAIExtractor(server, model, api_key=api_key, max_tokens=max_tokens)
    # The graph first: that it is down should not be found out after hours of extraction.
    with open_store(graph) as store:
        with make_progress() as progress:
            task = progress.add_task("chunks", total=len(chunks))
            found = extract_all(
                chunks,
                extractor,
                state=state,
                num_workers=workers,
                on_progress=lambda done: progress.update(task, completed=done),
            )
        if out is not None:
            lines = [json.dumps(triple, ensure_ascii=False) + "\n" for triple in found.triples]
            write_text(out, "".join(lines))
        change = store.upsert(found.triples)
        url = store.url
    answer = {
        "chunks": found.num_chunks,
        "resumed": found.num_resumed,
        "retried": found.num_retried,
        "bad_chunks": found.num_bad,
        "dropped_triples": found.num_dropped,
        "triples": len(found.triples),
        "added": change.num_triples,
        "problems": found.problems,
        "answer_form": extractor.form,
        "version": change.version,
        "graph": url,
    }
    if as_json:
        print_json(answer)
    else:
        _show_built(found, extractor.form, f"{change.num_triples:,} were new to {url}")
    if not found.triples:
        raise typer.Exit(1)


def _show_built(found: Extracted, form: str | None, added: str) -> None:
    console = make_console()
    before = f"{found.num_resumed:,} read before, {found.num_retried:,} tried again"
    console.print(
        f"{len(found.triples):,} triples from {found.num_chunks:,} chunks ({before}); {added}",
        markup=False,
    )
    if form not in (None, "json_schema"):
        console.print("the server does not hold answers to a JSON Schema", style="yellow")
    if found.num_bad or found.num_dropped:
        console.print(
            f"left out: {found.num_bad:,} chunks without usable output, "
            f"{found.num_dropped:,} malformed triples",
            style="yellow",
        )
        for problem in found.problems[:SHOWN_PROBLEMS]:
            console.print(f"  {problem}", markup=False)
    if found.num_bad:
        console.print("the same command again asks about these chunks again")


def _read_documents(files: list[Path]) -> Iterator[tuple[str, str]]:
    """(name, text) of each document."""
    for file in files:
        text = read_text(file)
        if file.suffix.lower() != ".jsonl":
            yield file.name, text
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield str(row.get("title") or row.get("id") or f"{file.name}:{number}"), row["text"]
            except (ValueError, RecursionError, AttributeError, LookupError) as error:
                raise PromptError(
                    f"line {number} of {str(file)!r} is no document: "
                    'write {"title": ..., "text": ...}'
                ) from error
