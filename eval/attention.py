# SPDX-License-Identifier: Apache-2.0
"""Attention plans: milliseconds of planning one prefill, and per layer of running it.

By two kinds of kernels, `causal` being ordinary attention over the same tokens:

    torch       on the CPU, plans in turns; the numbers behind `attention_plan: auto` there. Heads
                are those of the model of 30 million random weights.
    flashinfer  on the GPU if there is one, with the heads of Llama-3-8B, on Hopper by FA3 too;
                else only what planning costs on the host (`eval.gpu.plans`)

On a GPU also what it costs to move cached rows (`eval.gpu.moves`). Needs the extra `server`.

    --fused   prompts of chunks instead of trees: all of the context is cached, and a share of it
              computed again, the `first` tokens of each chunk or tokens anywhere (`random`)
    --quick   3 repeats instead of 15
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from depcache.prompt.forest import Forest
from depcache.prompt.prefix_tree import merge_sequences
from depcache.prompt.recompute import Recompute, Select
from depcache.select import select as choose_tokens
from depcache.serving.launch import require_sglang
from eval.gpu.moves import measure_moves
from eval.gpu.plans import measure_flashinfer
from eval.gpu.timing import find_device
from eval.micro.match_plan import make_paths
from eval.output import about, add_output, write_report
from flashinfer_masks.visibility import Step, Structure

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 4, 64
TASK_LEN = 24
TORCH, FLASHINFER = "torch", "flashinfer"
KERNELS = (TORCH, FLASHINFER)
CASES = ((3, 0), (10, 0), (10, 5), (10, 9), (20, 0), (20, 10), (20, 20))
"""Entities of the prompt, and how many of them are cached."""
TREE_PLANS = ("auto", "custom_mask", "segments", "cascade")
CHUNK_LEN = 128
FUSED_CASES = tuple(product((1_000, 4_000), (0.05, 0.15, 0.3), ("first", "random")))
"""Tokens of the context, the share of them that is computed again, and which these are."""
FUSED_PLANS = ("auto", "cascade", "custom_mask", "blocks")
"""Without `segments`: torch has it pad hundreds of requests of thousands of keys, in gigabytes."""


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


def make_fused_step(num_context: int, share: float, select: Select, system_len: int) -> Step:
    """A prompt of chunks, all of them cached, some of whose tokens are computed again."""
    lens = [CHUNK_LEN] * (num_context // CHUNK_LEN) + [num_context % CHUNK_LEN]
    num_tokens = system_len + num_context + TASK_LEN
    parents = np.full(len(lens), -1)
    forest = Forest.make(num_tokens, system_len, lens, parents.tolist())
    selected = choose_tokens(forest, Recompute(share=share, select=select, seed=0))
    structure = Structure.make(num_tokens, system_len, np.array(lens), parents)
    structure = structure.recompute(selected)
    is_new = np.zeros(num_tokens, bool)
    is_new[selected] = is_new[structure.task_start :] = True
    order = np.concatenate((np.flatnonzero(~is_new), np.flatnonzero(is_new)))
    num_new = int(is_new.sum())
    return Step(structure, order, num_tokens - num_new, num_new)


def tree_cases(system_len: int) -> Iterator[tuple[dict[str, Any], Step]]:
    """What tells each prompt with trees from the others, and its step."""
    for num_entities, num_cached in CASES:
        case = {"trees": num_entities, "system_len": system_len}
        yield case, make_step(num_entities, num_cached, system_len)


def fused_cases(system_len: int) -> Iterator[tuple[dict[str, Any], Step]]:
    """What tells each fused prompt from the others, and its step."""
    for num_context, share, select in FUSED_CASES:
        case = {"recompute": share, "select": select, "system_len": system_len}
        yield case, make_fused_step(num_context, share, select, system_len)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="3 repeats")
    parser.add_argument("--fused", action="store_true", help="fused prompts instead of trees")
    parser.add_argument("--repeats", type=int, help="of every plan (default 15)")
    parser.add_argument(
        "--kernels", nargs="+", choices=KERNELS, default=KERNELS, help="which (default both)"
    )
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
    for case, step in (fused_cases if args.fused else tree_cases)(args.system_len):
        plans = FUSED_PLANS if args.fused else TREE_PLANS
        case = {**case, "tokens": step.num_rows, "new_tokens": step.num_new}
        found: list[dict[str, Any]] = []
        if TORCH in args.kernels:
            found += [row | {"kernels": TORCH} for row in measure_torch(step, repeats, plans)]
        if FLASHINFER in args.kernels:
            found += measure_flashinfer(step, repeats)
        for row in found:
            rows.append(case | {key: _rounded(value) for key, value in row.items()})
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), file=sys.stderr)
    device = find_device()
    moves = measure_moves(repeats) if device is not None and not args.fused else []
    for row in moves:
        print("  ".join(f"{key}={value}" for key, value in row.items()), file=sys.stderr)
    settings = {"repeats": repeats, "system_len": args.system_len, "threads": args.threads}
    said = about(args, time.perf_counter() - started)
    report = {"device": device or said["machine"]["processor"], "rows": rows, "moves": moves}
    write_report(report | {"settings": settings} | said, args.json)
    return 0


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def measure_torch(step: Step, repeats: int, plans: Sequence[str]) -> list[dict[str, Any]]:
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
        for name in (*plans, "causal"):
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
