# SPDX-License-Identifier: Apache-2.0
"""`depcache demo`: start a server with DepCache and one without, ask both the same questions."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from depcache.cli.output import make_console, write_text
from depcache.client.client import Client
from depcache.demo.graph import open_sample_graph
from depcache.demo.run import (
    SGLANG,
    SYSTEMS,
    Answer,
    Asked,
    add_up,
    ask_all,
    make_passes,
    ttft_ms,
)
from depcache.demo.sample import load_questions
from depcache.demo.table import NOISE, TITLES, make_samples, make_table, make_verdict
from depcache.graph.retrieval import Retriever
from depcache.serving.launch import Launch, find_gpu, make_launch, require_sglang
from depcache.serving.process import ServerProcess, find_free_port
from depcache.serving.random_model import find_model, is_trained, load_flags
from depcache.serving.tiny import TINY_NAME

READY_S = 1800.0  # one that ends is noticed at once
# Enough for the whole sample in either cache: the demo compares reuse, not eviction.
POOL_TOKENS = 65536
MAX_TOKENS_RANDOM = 8
MAX_TOKENS_TRAINED = 96  # the evidence is said first


class SystemChoice(StrEnum):
    """Which servers the demo starts."""

    DEPCACHE = "depcache"
    SGLANG = "sglang"
    BOTH = "both"


def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file; - is stdout.")
    ] = None,
    questions: Annotated[
        int, typer.Option(min=1, help="Ask the first N of the 40 questions.")
    ] = 40,
    system: Annotated[SystemChoice, typer.Option(help="Which server to start.")] = (
        SystemChoice.BOTH
    ),
    model: Annotated[
        str,
        typer.Option(help="The model to serve; 30m, 125m, 8b (GPU) are random, for times only."),
    ] = TINY_NAME,
    hops: Annotated[int, typer.Option(min=1, max=3, help="Edges of the longest path.")] = 3,
    paths: Annotated[int, typer.Option(min=1, help="Paths kept for each entity.")] = 30,
    seed: Annotated[int, typer.Option(help="Random seed of the order in the second pass.")] = 0,
) -> None:
    """Ask 40 questions about a small graph, in two orders, with DepCache and without.

    The same SGLang with the same flags serves both; only the cache differs. One server after
    the other, one question after the other, streamed; times are taken at the client.
    """
    # Where the figures go to stdout, the talk must not.
    console = make_console(stderr=json_file is not None and str(json_file) == "-")
    require_sglang()
    with console.status("looking for the model, or making it of random weights"):
        found = find_model(model)
    trained = is_trained(found)
    # All paths are found before a server starts: no time below holds any of it.
    with open_sample_graph(lambda note: console.print(note, style="yellow", markup=False)) as graph:
        retriever = Retriever(graph, pruner="words", max_hops=hops, max_paths=paths)
        passes = make_passes(load_questions()[:questions], retriever, seed=seed)
    device = "gpu" if find_gpu() else "cpu"
    systems = SYSTEMS if system is SystemChoice.BOTH else (system.value,)
    console.print(
        f"{len(passes[0])} questions in two orders; {sum(len(a.paths) for a in passes[0])} paths "
        f"of up to {hops} hops; model {Path(model).name} on a {device.upper()}\n"
    )

    log_folder = Path(tempfile.mkdtemp(prefix="depcache-demo-"))
    answers_of: dict[str, list[Answer]] = {}
    for name in systems:
        max_tokens = MAX_TOKENS_TRAINED if trained else MAX_TOKENS_RANDOM
        answers_of[name] = _measure(console, name, found, passes, log_folder, max_tokens)

    console.print(make_table(answers_of), soft_wrap=False)
    console.print()
    console.print(make_samples(answers_of[systems[0]]), soft_wrap=False)
    if not trained:
        console.print(NOISE, style="yellow")
    console.print(f"\n{make_verdict(answers_of)}", style="bold")
    console.print(f"Logs of the servers: {log_folder}", style="dim", markup=False)
    if json_file is not None:
        figures = {
            "model": model,
            "trained": trained,
            "device": device,
            "systems": {
                name: asdict(add_up(answers))
                | {"ttft_ms_by_order": [round(ttft_ms(answers, order), 2) for order in (0, 1)]}
                for name, answers in answers_of.items()
            },
        }
        write_text(json_file, json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def make_demo_launch(model: str, system: str, port: int, *, has_gpu: bool) -> Launch:
    """The same server for both systems but for the cache."""
    args = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    args += ["--max-total-tokens", str(POOL_TOKENS), "--skip-server-warmup", *load_flags(model)]
    return make_launch(args, model=model, stock=system == SGLANG, has_gpu=has_gpu)


def _measure(
    console: Console,
    system: str,
    model: str,
    passes: list[list[Asked]],
    log_folder: Path,
    max_tokens: int,
) -> list[Answer]:
    """Start one system, ask it everything, stop it."""
    port = find_free_port()
    launch = make_demo_launch(model, system, port, has_gpu=find_gpu())
    url, log_file = f"http://127.0.0.1:{port}", log_folder / f"{system}.log"
    with ServerProcess(launch, url, log_file) as server:
        with console.status(f"starting {TITLES[system]}"):
            waited_s = server.wait_until_ready(READY_S)
        console.print(f"{TITLES[system]} was ready after {waited_s:.0f} s", style="dim")
        answers: list[Answer] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with (
            # SGLang is sent plain text on purpose.
            Client(url, warn_unread=system != SGLANG) as client,
            Progress(*columns, console=console, transient=True) as progress,
        ):
            total = sum(map(len, passes))
            task = progress.add_task(f"asking {TITLES[system]}", total=total)
            for answer in ask_all(client, passes, system=system, max_tokens=max_tokens):
                answers.append(answer)
                progress.advance(task)
    return answers
