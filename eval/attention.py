# SPDX-License-Identifier: Apache-2.0
"""Attention plans: milliseconds of planning one prefill, and per layer of running it.

By two kinds of kernels, `causal` being ordinary attention over the same tokens:

    torch       on the CPU, plans in turns; the numbers behind `attention_plan: auto` there. Heads
                are those of the model of 30 million random weights.
    flashinfer  on the GPU if there is one, with the heads of Llama-3-8B, on Hopper by FA3 too;
                else only what planning costs on the host (`eval.gpu.plans`)

On a GPU also what it costs to move cached rows (`eval.gpu.moves`). Needs the extra `server`.

    --quick   3 repeats instead of 15
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from depcache.prompt.prefix_tree import merge_sequences
from depcache.serving.launch import require_sglang
from eval.gpu.moves import measure_moves
from eval.gpu.plans import measure_flashinfer
from eval.gpu.timing import find_device
from eval.micro.match_plan import make_paths
from eval.output import about, add_output, write_report
from flashinfer_masks.visibility import Step, Structure

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 4, 64
TASK_LEN = 24
CASES = ((3, 0), (10, 0), (10, 5), (10, 9), (20, 0), (20, 10), (20, 20))
"""Entities of the prompt, and how many of them are cached."""


def make_step(num_entities: int, num_cached_entities: int, system_len: int) -> Step:
    """A prompt of 30 paths per entity; the last entities are cached, and so is the system."""
    rng = np.random.default_rng(0)
    paths = [path for entity in range(num_entities) for path in make_paths(entity, rng)]
    _, lens, parents = merge_sequences(paths)
    structure = Structure.make(
        system_len + sum(lens) + TASK_LEN, system_len, np.array(lens), np.array(parents)
    )
    num_tokens = structure.num_tokens
    indices = np.arange(num_tokens)
    is_cached = np.zeros(num_tokens, bool)
    if num_cached_entities:
        is_cached[:system_len] = True
        first = structure.tree_starts[structure.num_trees - num_cached_entities]
        is_cached[first : structure.task_start] = True
    order = np.concatenate((indices[is_cached], indices[~is_cached]))
    num_prefix = int(is_cached.sum())
    return Step(structure, order, num_prefix, num_tokens - num_prefix)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="3 repeats")
    parser.add_argument("--repeats", type=int, help="of every plan (default 15)")
    parser.add_argument("--system-len", type=int, default=64, help="tokens (default 64)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")


def run(args: argparse.Namespace) -> int:
    """Print and write the median and the spread of planning and of running, per case and plan."""
    require_sglang()
    import torch

    started = time.perf_counter()
    torch.set_num_threads(args.threads)
    repeats = args.repeats or (3 if args.quick else 15)
    rows: list[dict[str, Any]] = []
    for num_entities, num_cached in CASES:
        step = make_step(num_entities, num_cached, args.system_len)
        case = {
            "trees": num_entities,
            "system_len": args.system_len,
            "tokens": step.num_rows,
            "new_tokens": step.num_new,
        }
        found = [row | {"kernels": "torch"} for row in measure_torch(step, repeats)]
        found += measure_flashinfer(step, repeats)
        for row in found:
            rows.append(case | {key: _rounded(value) for key, value in row.items()})
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), file=sys.stderr)
    device = find_device()
    moves = measure_moves(repeats) if device is not None else []
    for row in moves:
        print("  ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr)
    settings = {"repeats": repeats, "system_len": args.system_len, "threads": args.threads}
    said = about(args, time.perf_counter() - started)
    report = {"device": device or said["machine"]["processor"], "rows": rows, "moves": moves}
    write_report(report | {"settings": settings} | said, args.json)
    return 0


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def measure_torch(step: Step, repeats: int) -> list[dict[str, Any]]:
    """One row per plan, and one for causal attention over the same rows."""
    import torch

    from sglang_patches.attention.torch_plans import WORK_BY_PLAN, CausalWork

    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(4 * step.num_rows, generator=generator)[: step.num_rows]
    shape = (4 * step.num_rows, NUM_KV_HEADS, HEAD_DIM)
    keys, values = torch.randn(shape), torch.randn(shape)
    query = torch.randn(step.num_new, NUM_HEADS, HEAD_DIM)
    output = torch.empty_like(query)
    times: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(repeats + 1):
        for name in (*WORK_BY_PLAN, "causal"):
            start = time.perf_counter()
            work = CausalWork(slots) if name == "causal" else WORK_BY_PLAN[name](step, slots)
            planned = time.perf_counter()
            work.run(query, keys, values, output, HEAD_DIM**-0.5)
            done = time.perf_counter()
            plan_ms, run_ms = times.setdefault(name, ([], []))
            plan_ms.append((planned - start) * 1e3)
            run_ms.append((done - planned) * 1e3)
    return [
        {
            "plan": name,
            "plan_ms_median": statistics.median(plan_ms[1:]),
            "run_ms_median": statistics.median(run_ms[1:]),
            "run_ms_min": min(run_ms[1:]),
            "run_ms_max": max(run_ms[1:]),
        }
        for name, (plan_ms, run_ms) in times.items()
    ]
