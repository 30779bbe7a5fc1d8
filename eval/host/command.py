# SPDX-License-Identifier: Apache-2.0
"""What a request costs when all of its facts are cached: `python -m eval host --json OUT`.

Starts DepCache and stock SGLang side by side on depcache-tiny, each with one thread for the model,
and asks them for the same facts in turns, one request at a time, when everything is in the cache
of both. Counts the processor time of each process, the time to the first token and the bytes that
are sent, and looks with py-spy at which stage of a request takes how much.

    entities   10 entities of up to 30 paths each, over MetaQA with --data, else the demo's graph
    questions  the demo's questions with the paths that retrieval finds

    --quick    fewer rounds and samples; about two minutes on two quiet cores

Needs the extras `server` and `bench`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
from depcache.serving.random_model import find_model, is_trained
from depcache.serving.tiny import TINY_NAME
from eval.host.figures import make_figures, to_text
from eval.host.measure import SERVER_OF, measure, write_bodies
from eval.host.servers import open_servers
from eval.output import about, add_output, require, write_report
from eval.serve import workloads
from eval.serve.systems import Writer
from eval.serve.workloads import ServeSpec
from eval.workloads.graphs import Graphs

ROUNDS, ROUNDS_QUICK = 12, 3
SAMPLED, SAMPLED_QUICK = 400, 60
"""Requests of each form with the profiler."""
REQUESTS = 40
"""About how many requests a round has of each form."""
NUM_PROMPTS = 4
QUESTIONS = "questions:demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="fewer rounds and samples")
    add = parser.add_argument
    add("--data", type=Path, help="folder that holds the public sets")
    add("--model", default=TINY_NAME, help="a folder, depcache-tiny, or random weights: 30m, 125m")
    add("--template", default="path", choices=("path", "triple"), help="how paths become text")
    add("--prompts", type=int, default=NUM_PROMPTS, help=f"different ones (default {NUM_PROMPTS})")
    add("--entities", type=int, default=10, help="of a prompt (default 10)")
    add("--paths", type=int, default=30, help="of an entity, at most (default 30)")
    add("--rounds", type=int, help=f"(default {ROUNDS}; quick {ROUNDS_QUICK})")
    add("--no-stages", action="store_true", help="leave the profiler out")
    add("--no-questions", action="store_true", help="leave the demo's questions out")
    add("--pool-tokens", type=int, default=200_000, help="for KV of each server")
    add("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    from transformers import AutoTokenizer

    require_sglang()
    require("psutil", "tabulate")
    err = Console(stderr=True, highlight=False)
    model = find_model(args.model)
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(f"{model!r} is no folder of a model: give one with --model")
    writer = Writer(AutoTokenizer.from_pretrained(model), args.template)
    graphs = Graphs(args.data)
    specs = {"entities": _entities(args)}
    if not args.no_questions:
        specs["questions"] = ServeSpec(QUESTIONS, REQUESTS, seed=args.seed)
    made = {name: workloads.make(spec, graphs) for name, spec in specs.items()}
    rounds = args.rounds or (ROUNDS_QUICK if args.quick else ROUNDS)
    sampled = 0 if args.no_stages else (SAMPLED_QUICK if args.quick else SAMPLED)
    figures: dict[str, Any] = {}
    loads = [os.getloadavg()[0]]
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder,
        err.status("starting the servers") as status,
        open_servers(
            tuple(dict.fromkeys(SERVER_OF.values())),
            model,
            Path(folder),
            pool_tokens=args.pool_tokens,
        ) as servers,
    ):
        for name, workload in made.items():
            bodies = write_bodies(writer, workload.requests)
            num = len(workload.requests)
            found = measure(
                servers,
                bodies,
                rounds=rounds,
                repeats=-(-REQUESTS // num),
                sampled=-(-sampled // num) if name == "entities" else 0,
                on_step=lambda text, name=name: status.update(f"{name}: {text}"),
            )
            figures[name] = make_figures(found)
            loads.append(os.getloadavg()[0])
            text = f"{name}, {workload.spec.name}\n\n{to_text(figures[name])}\n"
            err.print(text, markup=False, soft_wrap=True)
    said = about(args, time.perf_counter() - started)
    said["machine"] |= {"load_average": [round(load, 2) for load in loads]}
    report = figures.pop("entities") | figures
    report["workloads"] = {
        name: {"name": each.spec.name, "prompts": len(each.requests), "digest": each.digest()}
        for name, each in made.items()
    }
    report["model"] = {"name": args.model, "trained": is_trained(model)}
    write_report(report | said, args.json)
    return 0


def _entities(args: argparse.Namespace) -> ServeSpec:
    name = "zipfian:metaqa" if args.data else "zipfian:demo"
    return ServeSpec(
        name, args.prompts, num_entities=args.entities, num_paths=args.paths, seed=args.seed
    )
