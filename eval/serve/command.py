# SPDX-License-Identifier: Apache-2.0
"""How much faster than what? `python -m eval serve [--quick] [--data DIR] --json OUT`.

Starts each system as a real server, in turns, and asks all of them the same requests: from an
empty cache, warm, by several users at once, and, for DepCache, with the entities' trees computed
ahead (see `eval.serve.measure`). Times are taken at the client, over streamed answers.

    --quick       one round, fewer requests of half the size; below 10 minutes on two quiet cores
    --profile X   only where the time of a warm request of the system X goes
    --sustained   only a long stream, in a cache that holds a part of it: what wears off?

The workload is zipfian over MetaQA with --data, else over the demo's graph; name others with
--workloads (see `eval.serve.workloads`). vLLM runs in an environment of its own, whose python
--vllm names. A run leaves manifest.json, requests.jsonl, summary.json, report.md, report.html
and pictures in --out. Needs the extras `server` and `bench`.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console

from depcache.cli.output import make_progress
from depcache.client.client import DEFAULT_URL
from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
from depcache.serving.random_model import find_model, is_trained
from eval.output import about, add_output, require, write_report
from eval.serve import workloads
from eval.serve.arrivals import poisson, read_trace
from eval.serve.export import bench_command, export
from eval.serve.figures import (
    make_gain,
    make_ratio_ranges,
    make_ratios,
    make_rows,
    over_time,
)
from eval.serve.measure import LOAD, STREAM, WARM, Options, Run, measure, num_steps
from eval.serve.plots import plot_run
from eval.serve.profile import profile, to_text
from eval.serve.report import to_markdown, write_files
from eval.serve.systems import System, Writer, get_system
from eval.serve.workloads import ServeSpec
from eval.workloads.graphs import Graphs

COUNTS = {STREAM: 200, WARM: 100, LOAD: 200}
COUNTS_QUICK = {STREAM: 16, WARM: 12, LOAD: 8}
ENTITIES, ENTITIES_QUICK = 10, 5
"""How many entities a request is about."""
POOL, POOL_QUICK = 2000, 100
"""Entities; with fewer requests from fewer, so that what is warm in the end is alike."""
POOL_TOKENS = 400_000
COUNTS_SUSTAINED = {STREAM: 600, WARM: 0, LOAD: 0}
POOL_TOKENS_SUSTAINED = 60_000
ROUNDS = 3
MODEL = "30m"
MAX_TOKENS, MAX_ANSWER_TOKENS = 8, 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="one round, fewer and shorter requests")
    add = parser.add_argument
    add("--out", type=Path, help="folder for all files of the run (default: none is kept)")
    add("--data", type=Path, help="folder that holds the public sets")
    add("--workloads", nargs="+", help="as zipfian:metaqa, zipfian:metaqa:4000, questions:demo")
    add("--systems", nargs="+", default=["depcache", "sglang", "sglang-dedup"])
    add("--vllm", type=Path, help="python of an environment with vLLM; adds the system vllm")
    add("--model", help="a folder, depcache-tiny, or random weights: 30m, 125m, 8b (default 30m)")
    add("--template", default="path", choices=("path", "triple"), help="how paths become text")
    add("--entities", type=int, help=f"of a request (default {ENTITIES}; quick {ENTITIES_QUICK})")
    add("--paths", type=int, default=30, help="of an entity, at most (default 30)")
    add("--hops", type=int, default=2, help="of a path, at most (default 2)")
    add("--pool", type=int, help=f"entities that are asked about (default {POOL})")
    add("--sustained", action="store_true", help="a long stream in a small cache, nothing else")
    for phase, number in COUNTS.items():
        add(f"--{phase}", type=int, help=f"requests of the phase {phase} (default {number})")
    add("--rounds", type=int, help=f"of every system (default {ROUNDS}; quick 1)")
    add("--concurrency", type=int, default=8, help="users of the phase load (default 8)")
    add("--rate", type=float, help="load by a Poisson process of this many requests a second")
    add("--trace", type=Path, help="load at the times of this trace; --rate scales it")
    add("--ttft-limit-ms", type=float, default=1000.0, help="of the goodput (default 1000)")
    add(
        "--max-tokens",
        type=int,
        help=f"of an answer (default {MAX_TOKENS}; {MAX_ANSWER_TOKENS} of questions)",
    )
    add("--load-tokens", type=int, default=32, help="of an answer under load (default 32)")
    add("--server-args", default="", help="flags of every SGLang server, in one string")
    add("--pool-tokens", type=int, help=f"for KV (default {POOL_TOKENS:,})")
    add(
        "--export",
        type=Path,
        help="write the requests to this folder as OpenAI JSONL, print how sglang.bench_serving "
        "replays them, and end",
    )
    add(
        "--profile",
        metavar="SYSTEM",
        help="where the time of its warm requests goes (first workload), only that",
    )
    add("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    started = time.perf_counter()
    err = Console(stderr=True, highlight=False)
    with err.status("making the workload"):
        model, made, writer = _prepare(args)
    if args.export is not None:
        args.export.mkdir(parents=True, exist_ok=True)
        for workload in made:
            for name in ("depcache", "sglang"):
                file = args.export / f"{workload.spec.name.replace(':', '_')}.{name}.jsonl"
                max_tokens = _max_tokens(args, workload)
                export(workload.requests, get_system(name), writer, max_tokens, file)
                command = bench_command(file, len(workload.requests), DEFAULT_URL)
                print(shlex.join(command))
        return 0
    if args.profile is not None:
        [system] = _get_systems([args.profile], args)
        with (
            err.status(f"profiling {args.profile}"),
            tempfile.TemporaryDirectory(prefix="depcache-eval-") as logs,
        ):
            options = _options(args, made[0], model, Path(logs))
            found = profile(system, made[0], writer, options)
        err.print(to_text(found), markup=False, soft_wrap=True)
        write_report(
            {"profile": found, "manifest": about(args, time.perf_counter() - started)}, args.json
        )
        return 0
    report, runs = make_report(args, model, made, writer, err)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        plots = [file for each in runs for file in plot_run(each, args.out)]
        write_files(args.out, report, runs, plots)
    err.print(to_markdown(report), markup=False, soft_wrap=True)
    write_report(report, args.json)
    return 0


def _prepare(args: argparse.Namespace) -> tuple[str, list[workloads.Workload], Writer]:
    """The folder of the model, the workloads, and who writes them."""
    from transformers import AutoTokenizer

    require_sglang()
    require("matplotlib", "psutil", "tabulate")
    model = find_model(args.model or MODEL)
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(f"{model!r} is no folder of a model: give one with --model")
    graphs = Graphs(args.data)
    names = args.workloads or ["zipfian:metaqa" if args.data else "zipfian:demo"]
    counts = _counts(args)
    writer = Writer(AutoTokenizer.from_pretrained(model), args.template)
    specs = [
        ServeSpec(
            name,
            sum(counts.values()),
            num_entities=args.entities or (ENTITIES_QUICK if args.quick else ENTITIES),
            num_paths=args.paths,
            num_hops=args.hops,
            pool=args.pool or (POOL_QUICK if args.quick else POOL),
            seed=args.seed,
        )
        for name in names
    ]
    fitted = [workloads.fit(spec, graphs, writer.num_flat_tokens) for spec in specs]
    return model, [workloads.make(spec, graphs) for spec in fitted], writer


def make_report(
    args: argparse.Namespace,
    model: str,
    made: list[workloads.Workload],
    writer: Writer,
    err: Console,
) -> tuple[dict[str, Any], list[Run]]:
    """The report and all that was measured."""
    names = [*args.systems, *(["vllm"] if args.vllm and "vllm" not in args.systems else [])]
    systems = _get_systems(names, args)
    started = time.perf_counter()
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory(prefix="depcache-eval-") as logs,
        make_progress(err) as progress,
    ):
        options = [_options(args, workload, model, Path(logs)) for workload in made]
        task = progress.add_task("starting", total=sum(num_steps(systems, o) for o in options))

        def on_step(text: str, steps: int) -> None:
            progress.update(task, advance=steps, description=text or None)

        for workload, each in zip(made, options, strict=True):
            runs.append(measure(workload, systems, writer, each, on_step))
    ratios = {each.workload.spec.name: make_ratios(each) for each in runs}
    report: dict[str, Any] = {
        "rows": [row for each in runs for row in make_rows(each)],
        "ratios": ratios[runs[0].workload.spec.name],
        "workloads": [each.workload.spec.name for each in runs],
        "ratios_by_workload": ratios,
        "ratio_ranges": {each.workload.spec.name: make_ratio_ranges(each) for each in runs},
        "gains": {each.workload.spec.name: make_gain(each, writer) for each in runs},
        "precomputed": {each.workload.spec.name: each.precomputed for each in runs},
        "over_time": {each.workload.spec.name: over_time(each) for each in runs},
        "manifest": _manifest(args, model, runs, time.perf_counter() - started),
    }
    return report, runs


def _get_systems(names: Sequence[str], args: argparse.Namespace) -> list[System]:
    """Returns the systems of these names; ConfigError before anything is started."""
    systems = [get_system(name) for name in names]
    if any(system.engine == "vllm" for system in systems) and args.vllm is None:
        raise ConfigError("vllm needs an environment of its own: name its python with --vllm")
    return systems


def _options(
    args: argparse.Namespace, workload: workloads.Workload, model: str, logs: Path
) -> Options:
    counts = _counts(args)
    return Options(
        model=model,
        template=args.template,
        pool_tokens=args.pool_tokens or (POOL_TOKENS_SUSTAINED if args.sustained else POOL_TOKENS),
        counts=counts,
        rounds=args.rounds or (1 if args.quick else ROUNDS),
        max_tokens=_max_tokens(args, workload),
        load_tokens=args.load_tokens,
        concurrency=args.concurrency,
        arrivals=_arrivals(args, counts[LOAD]),
        ttft_limit_s=args.ttft_limit_ms / 1e3,
        stops_early=_has_answers(workload),
        vllm_python=args.vllm,
        server_args=tuple(shlex.split(args.server_args)),
        log_folder=logs,
    )


def _has_answers(workload: workloads.Workload) -> bool:
    """Where it is known what is right, answers are given to their end, to be judged."""
    return workload.spec.pattern == workloads.QUESTIONS


def _max_tokens(args: argparse.Namespace, workload: workloads.Workload) -> int:
    return args.max_tokens or (MAX_ANSWER_TOKENS if _has_answers(workload) else MAX_TOKENS)


def _counts(args: argparse.Namespace) -> dict[str, int]:
    defaults = COUNTS_QUICK if args.quick else COUNTS
    defaults = COUNTS_SUSTAINED if args.sustained else defaults
    given = {phase: getattr(args, phase) for phase in defaults}
    return {phase: defaults[phase] if n is None else n for phase, n in given.items()}


def _arrivals(args: argparse.Namespace, number: int) -> tuple[float, ...] | None:
    if args.rate is not None and not args.rate > 0:
        raise ConfigError(f"--rate is {args.rate:g}: choose more than 0 requests a second")
    if args.trace is not None:
        return tuple(read_trace(args.trace, number, args.rate))
    return None if args.rate is None else tuple(poisson(args.rate, number, args.seed))


def _manifest(
    args: argparse.Namespace, model: str, runs: list[Run], seconds: float
) -> dict[str, Any]:
    folder, name = Path(model), args.model or MODEL
    weights = sorted(folder.glob("*.safetensors"))
    digest = sha256()
    for file in [folder / "config.json", *weights]:
        digest.update(file.read_bytes())
    hidden = {"json", "out", "data", "model", "vllm", "trace", "export", "what", "command"}
    said = about(args, seconds)
    said["machine"]["load_average"] = [round(load, 2) for each in runs for load in each.loads]
    return said | {
        "model": {
            "name": folder.name if "/" in name else name,
            "trained": is_trained(model),
            "sha256": digest.hexdigest(),
        },
        "template": args.template,
        "settings": {
            key: value
            for key, value in vars(args).items()
            if key not in hidden and value is not None
        }
        | {"counts": _counts(args)},
        "workloads": {each.workload.spec.name: each.workload.digest() for each in runs},
        "servers": {
            name: {
                "command": _without_folders(command, model, args),
                "version": each.facts.get(name, {}).get("version"),
            }
            for each in runs
            for name, command in each.servers.items()
        },
    }


def _without_folders(command: str, model: str, args: argparse.Namespace) -> str:
    """Where things lie on this machine is nobody's business."""
    command = command.replace(model, "MODEL")
    if args.vllm is not None:
        command = command.replace(str(args.vllm), "python")
    words = command.split(" ")
    return " ".join("python" if word.endswith("/python") else word for word in words)
