# SPDX-License-Identifier: Apache-2.0
"""`depcache serve`: become SGLang's server process, with DepCache in it."""

from __future__ import annotations

import os
import shutil
from enum import StrEnum
from typing import Annotated

import typer

from depcache.cli.output import make_console, print_json
from depcache.config import CONFIG_VARIABLE, load_config
from depcache.errors import ConfigError
from depcache.serving.launch import find_gpu, make_launch, require_free_port, require_sglang


class AttentionPlan(StrEnum):
    """How dependency attention is computed."""

    AUTO = "auto"
    CUSTOM_MASK = "custom_mask"
    SEGMENTS = "segments"
    CASCADE = "cascade"
    BLOCKS = "blocks"


class CpuAttention(StrEnum):
    """What is computed for plain requests on a CPU."""

    NEW_ROWS = "new_rows"
    STOCK = "stock"


class QueueOrder(StrEnum):
    """In which order waiting requests run."""

    SGLANG = "sglang"
    LSP = "lsp"
    XOR = "xor"


class WritePolicy(StrEnum):
    """What is written to disk."""

    WRITE_BACK = "write_back"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_THROUGH = "write_through"


def serve(
    context: typer.Context,
    attention_plan: Annotated[
        AttentionPlan | None, typer.Option(help="How dependency attention is computed.")
    ] = None,
    cpu_attention: Annotated[
        CpuAttention | None,
        typer.Option(
            help="On a CPU: compute only the new rows of plain requests, or all as SGLang does."
        ),
    ] = None,
    queue_order: Annotated[
        QueueOrder | None,
        typer.Option(
            help="Order of waiting requests: SGLang's, longest shared prefix, or fewest different "
            "tables."
        ),
    ] = None,
    host_gb: Annotated[
        float | None, typer.Option(min=0, help="Host memory for KV that leaves the device, in GB.")
    ] = None,
    disk_gb: Annotated[
        float | None, typer.Option(min=0, help="Disk for KV, in GB; needs --host-gb.")
    ] = None,
    disk_folder: Annotated[
        str | None,
        typer.Option(help="Folder of the disk tier; a restarted server finds its KV there."),
    ] = None,
    write_policy: Annotated[
        WritePolicy | None,
        typer.Option(
            help="What goes to disk: KV that leaves the device, also KV used twice, or all."
        ),
    ] = None,
    recognise: Annotated[
        str | None,
        typer.Option(
            metavar="auto|NAMES|off",
            help="Find the facts in plain prompts: with all recognisers, or some (names with "
            "commas between). Off by default: facts that do not see each other change answers.",
        ),
    ] = None,
    recompute: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of what --recognise finds that is computed again with full view, for a "
            "model as it comes; 0.05 is what was found to do (docs: models as they come).",
        ),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Catalog of tables, of `depcache tables load`, to find in plain prompts.",
        ),
    ] = None,
    match_tables: Annotated[
        bool,
        typer.Option(
            "--match-tables",
            help="Find them in every plain prompt, not only where a request asks for it. Off by "
            "default: a table that does not see all before it changes answers.",
        ),
    ] = False,
    fused_evidence: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Report of `python -m eval chunks` with this model: fuse only what it shows to "
            "work, answer all else as flat text.",
        ),
    ] = None,
    fused_min_recovery: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of the loss that must come back by the evidence; 0.8 without this flag.",
        ),
    ] = None,
    cpu_threads: Annotated[
        int | None, typer.Option(min=0, help="Threads of the model on a CPU; 0 is every core.")
    ] = None,
    experimental: Annotated[
        bool,
        typer.Option(
            "--experimental",
            help="Allow what nobody has run with DepCache: --tp-size above 1 and LoRA on a GPU, "
            "and the disk backends simm and mori.",
        ),
    ] = False,
    config_file: Annotated[
        str | None, typer.Option("--depcache-config", help="YAML file with DepCache's settings.")
    ] = None,
    stock: Annotated[
        bool,
        typer.Option(
            "--stock",
            help="Start the baseline: the same SGLang with its own prefix cache.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command instead of running it.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the command as JSON.")
    ] = False,
) -> None:
    """Start SGLang with DepCache: `depcache serve MODEL [any SGLang flag]`.

    MODEL is a folder or a name, as for `sglang serve`, or `depcache-tiny`, a small model to
    try it with. Every flag that is not listed here goes to SGLang unchanged;
    `python -m sglang.launch_server --help` lists them.

    Defaults that SGLang does not have: --radix-cache-backend depcache, --page-size 1,
    --enable-cache-report, --radix-eviction-policy lacr_adaptive (also lacr, lru, lfu, fifo, gdsf,
    pgdsf, cfo).
    With a GPU also: --attention-backend flashinfer, --disable-prefill-cuda-graph.
    Without one: --attention-backend torch_native, --device cpu, --sampling-backend pytorch,
    --dtype float32, --mem-fraction-static 0.3 (0.9 if --max-total-tokens bounds the memory).

    There is no flag for the position layout: each request chooses it.
    """
    args = list(context.args)
    model = args.pop(0) if args and not args[0].startswith("-") else None
    chosen = {
        "attention_plan": attention_plan,
        "cpu_attention": cpu_attention,
        "queue_order": queue_order,
        "host_gb": host_gb,
        "disk_gb": disk_gb,
        "disk_folder": disk_folder,
        "write_policy": write_policy,
        "recognise": recognise,
        "recompute": recompute,
        "tables": tables,
        "match_tables": match_tables or None,
        "fused_evidence": fused_evidence,
        "fused_min_recovery": fused_min_recovery,
        "cpu_threads": cpu_threads,
        "experimental": experimental or None,
    }
    launch = make_launch(
        args,
        model=model,
        stock=stock,
        has_gpu=find_gpu(),
        settings={name: str(value) for name, value in chosen.items() if value is not None},
    )
    if config_file is not None:
        launch.env[CONFIG_VARIABLE] = config_file
    if dry_run:
        if as_json:
            print_json({"argv": launch.argv, "env": launch.env})
        else:
            print(launch.to_shell())
        return
    if as_json:
        raise ConfigError("a running server prints its log, not JSON: use --json with --dry-run")
    require_sglang()
    os.environ.update(launch.env)
    load_config()  # a wrong setting is said here, in one sentence, and not by a scheduler
    require_free_port(launch.argv)
    make_console(stderr=True).print(f"depcache: {launch.to_shell()}", style="dim", markup=False)
    executable = shutil.which(launch.argv[0]) or launch.argv[0]
    os.execvpe(executable, launch.argv, dict(os.environ))
