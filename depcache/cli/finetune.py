# SPDX-License-Identifier: Apache-2.0
"""`depcache finetune`: teach a model dependency attention, and make the data for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from depcache.cli.ask import DEFAULT_PRUNER, AsJson, Hops, PrunerName
from depcache.cli.graphs import Graph, open_retriever
from depcache.cli.output import make_console, make_grid, print_json
from depcache.graph.stores import DEFAULT_URL as DEFAULT_GRAPH
from depcache.prompt.render import DEFAULT_SYSTEM
from depcache.serving.tiny import resolve_model
from depcache.tables.seen import DEFAULT_SEES

finetune_app = typer.Typer(
    help="Teach a model dependency attention. Needs the extra `finetune`.", no_args_is_help=True
)


@finetune_app.command("run")
def run(
    model: Annotated[str, typer.Argument(help="Folder or name of the model to start from.")],
    data: Annotated[
        Path,
        typer.Option(
            help="JSONL of question, paths (or tables) and answer; `finetune data` makes it."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model; `depcache serve` takes it.")],
    layout: Annotated[
        list[str] | None,
        typer.Option(help="tree, staggered or sequential; each example gets one of those given."),
    ] = None,
    attention: Annotated[
        str, typer.Option(help="dependency; or flat or deduplicated, to compare with.")
    ] = "dependency",
    lora: Annotated[int, typer.Option(min=0, help="Rank of adapters; 0 trains all weights.")] = 0,
    learning_rate: Annotated[float, typer.Option(min=0)] = 2e-5,
    batch: Annotated[int, typer.Option(min=1, help="Examples a step, over all devices.")] = 64,
    epochs: Annotated[float, typer.Option(min=0)] = 1.0,
    max_steps: Annotated[
        int, typer.Option(min=0, help="Stop after so many steps; 0: train all epochs.")
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a packed row; longer examples are left out.")
    ] = 4096,
    packing: Annotated[bool, typer.Option(help="Pack several examples into one row.")] = True,
    system: Annotated[
        str, typer.Option(help="System message of later questions; '' for none.")
    ] = DEFAULT_SYSTEM,
    sees: Annotated[
        str, typer.Option(help="What a table sees: nothing, references or component.")
    ] = DEFAULT_SEES,
    save_steps: Annotated[int, typer.Option(min=0, help="Steps between checkpoints.")] = 100,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    checkpoint_gradients: Annotated[
        bool, typer.Option("--checkpoint-gradients", help="Use less memory and a third more time.")
    ] = False,
    deepspeed: Annotated[
        Path | None, typer.Option(help="DeepSpeed configuration, for several GPUs.")
    ] = None,
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Fine-tune MODEL on dependency prompts, with the masks and positions of the server.

    On several GPUs: `accelerate launch --no-python depcache finetune run ...`.
    """
    from depcache.training.finetune import FinetuneSettings, finetune

    is_first = int(os.environ.get("RANK", "0")) == 0  # of the processes of a launcher
    start = resolve_model(model)
    wanted: Any = tuple(layout or ("tree",))  # the encoder refuses others, and names the choices
    kind: Any = attention
    settings = FinetuneSettings(
        layouts=wanted,
        attention=kind,
        system=system or None,
        sees=sees,
        lora=lora,
        learning_rate=learning_rate,
        batch=batch,
        epochs=epochs,
        max_steps=max_steps,
        max_tokens=max_tokens,
        is_packed=packing,
        save_steps=save_steps,
        checkpoint_gradients=checkpoint_gradients,
        deepspeed=None if deepspeed is None else str(deepspeed),
        seed=seed,
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = make_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not is_first) as progress:
        task = progress.add_task("reading", total=None)

        def on_step(step: int, num_steps: int, loss: float) -> None:
            progress.update(task, completed=step, total=num_steps, description=f"loss {loss:.3f}")

        record = finetune(start, data, out, settings, resume=resume, on_step=on_step)
    if not is_first:
        return
    if as_json:
        print_json(record)
        return
    table = make_grid(2)
    for name in ("examples", "too_long", "rows", "steps", "seconds", "tokens_per_s"):
        table.add_row(name.replace("_", " "), f"{record[name]:,}")
    losses = [loss for _, loss in record["loss"]]
    if losses:
        table.add_row("loss", f"{losses[0]} at first, {losses[-1]} at last")
    console = make_console()
    console.print(table)
    console.print(f"the model is in {out}: depcache serve {out}", markup=False, highlight=False)


@finetune_app.command("data")
def data(
    questions: Annotated[
        Path, typer.Option(help="JSONL of question and answer (or answers, a list).")
    ],
    out: Annotated[Path, typer.Option(help="JSONL for `finetune run`.")],
    graph: Graph = DEFAULT_GRAPH,
    hops: Hops = 2,
    num_paths: Annotated[int, typer.Option("--paths", min=1, help="Paths of each entity.")] = 30,
    pruner: PrunerName = DEFAULT_PRUNER,
    as_json: AsJson = False,
) -> None:
    """Retrieve the paths of each question from a graph, as `ask` does."""
    from depcache.training.build import build_examples
    from depcache.training.examples import write_examples

    with open_retriever(graph, pruner) as retriever:
        examples = build_examples(retriever, questions, num_hops=hops, num_paths=num_paths)
        number = write_examples(examples, out)
    if as_json:
        print_json({"examples": number, "file": str(out)})
    else:
        make_console().print(f"{number:,} examples in {out}", markup=False, highlight=False)
