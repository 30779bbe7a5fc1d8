# SPDX-License-Identifier: Apache-2.0
"""Every attention plan, run with torch, equals dense attention under the mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashinfer_masks.dense import dense_mask
from flashinfer_masks.visibility import Step, Structure

pytestmark = pytest.mark.sglang

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
SCALE = 0.3
PLANS = ("auto", "custom_mask", "segments", "cascade", "blocks")


def make_step(
    rng: np.random.Generator,
    *,
    num_segments: int,
    system_len: int,
    max_len: int = 6,
    task_len: int = 5,
    share_cached: float = 0.0,
    num_new: int | None = None,
    one_tree: bool = False,
) -> Step:
    """A random forest, of whose segments some, with all above them, are cached."""
    parents = [-1]
    way = [0]
    for i in range(1, num_segments):
        level = int(rng.integers(1 if one_tree else 0, len(way) + 1))
        parents.append(way[level - 1] if level else -1)
        way = [*way[:level], i]
    lens = rng.integers(1, max_len + 1, num_segments)
    num_tokens = system_len + int(lens.sum()) + task_len
    structure = Structure.make(num_tokens, system_len, lens, np.array(parents))
    is_cached = np.zeros(num_tokens, bool)
    if share_cached:
        is_cached[:system_len] = True
        for i, parent in enumerate(parents):
            start = int(structure.starts[i])
            above = parent < 0 or is_cached[structure.starts[parent] + lens[parent] - 1]
            if above and rng.random() < share_cached:
                is_cached[start : start + int(lens[i])] = True
    indices = np.arange(num_tokens)
    order = np.concatenate((rng.permutation(indices[is_cached]), indices[~is_cached]))
    num_prefix = int(is_cached.sum())
    return Step(structure, order, num_prefix, num_new or num_tokens - num_prefix)


def make_fused_step(rng: np.random.Generator, share: float | None = None) -> Step:
    """A random forest, all of it cached; a random set of its tokens is computed again."""
    step = make_step(
        rng,
        num_segments=int(rng.integers(1, 60)),
        system_len=int(rng.integers(0, 20)),
        max_len=int(rng.integers(1, 30)),
        share_cached=1.0,
    )
    structure = step.structure
    context = np.arange(structure.system_len, structure.task_start)
    chosen = rng.random(len(context)) < (rng.random() if share is None else share)
    structure = structure.recompute(context[chosen])
    kept = np.setdiff1d(np.arange(structure.task_start), structure.recomputed)
    new = np.setdiff1d(np.arange(structure.num_tokens), kept)
    order = np.concatenate((rng.permutation(kept), new))
    return Step(structure, order, len(kept), len(new))


def run(plan: str, step: Step, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """The plan's output, and float64 dense attention under the oracle's mask."""
    from sglang_patches.attention.torch_plans import WORK_BY_PLAN

    generator = torch.Generator().manual_seed(0)
    num_slots = 3 * step.num_rows
    keys, values = (
        torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM, generator=generator).to(dtype)
        for _ in range(2)
    )
    slots = torch.randperm(num_slots, generator=generator)[: step.num_rows]
    query = torch.randn(step.num_new, NUM_HEADS, HEAD_DIM, generator=generator).to(dtype)
    output = torch.full_like(query, torch.nan)
    WORK_BY_PLAN[plan](step, slots).run(query, keys, values, output, SCALE)

    group = NUM_HEADS // NUM_KV_HEADS
    k = keys[slots].double().repeat_interleave(group, 1)
    v = values[slots].double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), k) * SCALE
    scores = scores.masked_fill(~torch.from_numpy(dense_mask(step)), -torch.inf)
    return output, torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


CASES = {
    "cold": {"num_segments": 60, "system_len": 12},
    "partly cached": {"num_segments": 80, "system_len": 12, "share_cached": 0.6},
    "all cached": {"num_segments": 40, "system_len": 7, "share_cached": 1.0},
    "no system": {"num_segments": 50, "system_len": 0},
    "no system, cached": {"num_segments": 50, "system_len": 0, "share_cached": 0.7},
    "long system": {"num_segments": 20, "system_len": 150},
    "long segments": {"num_segments": 12, "system_len": 9, "max_len": 200},
    "one tree": {"num_segments": 90, "system_len": 5, "one_tree": True},
    "one segment": {"num_segments": 1, "system_len": 3},
    "tokens alone": {"num_segments": 100, "system_len": 2, "max_len": 1},
    "long task": {"num_segments": 30, "system_len": 4, "task_len": 120, "share_cached": 0.5},
    "a chunk": {"num_segments": 60, "system_len": 12, "num_new": 37},
    "a chunk of the system": {"num_segments": 9, "system_len": 40, "num_new": 11},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_equals_dense_attention(plan: str, case: str) -> None:
    for seed in range(4):
        step = make_step(np.random.default_rng(seed), **CASES[case])
        output, expected = run(plan, step)
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_equals_dense_attention_for_200_forests_and_sets_of_recomputed_tokens(
    plan: str,
) -> None:
    rng = np.random.default_rng(4)
    sizes: list[int] = []
    for _ in range(200):
        step = make_fused_step(rng)
        output, expected = run(plan, step)
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)
        sizes.append(len(step.structure.recomputed))
    assert min(sizes) < 64 < 4 * 64 < max(sizes)  # no block, one, and several levels of them


@pytest.mark.parametrize("plan", PLANS)
def test_chunks_of_a_fused_prompt_attend_as_all_of_it(plan: str) -> None:
    whole = make_fused_step(np.random.default_rng(8), share=0.5)
    for start in range(0, whole.num_new, 100):
        num_new = min(100, whole.num_new - start)
        step = Step(whole.structure, whole.order, whole.num_prefix + start, num_new)
        output, expected = run(plan, step)
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("plan", PLANS)
def test_a_fused_plan_in_bfloat16_is_as_close_as_its_rounding(plan: str) -> None:
    step = make_fused_step(np.random.default_rng(3), share=0.4)
    output, expected = run(plan, step, torch.bfloat16)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=5e-2)


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_in_bfloat16_is_as_close_as_its_rounding(plan: str) -> None:
    step = make_step(np.random.default_rng(0), **CASES["partly cached"])
    output, expected = run(plan, step, torch.bfloat16)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=5e-2)


@pytest.mark.parametrize(("num_prefix", "num_new"), [(0, 9), (0, 300), (40, 1), (40, 9), (90, 200)])
def test_a_plain_request_over_new_rows_equals_causal_attention(num_prefix, num_new) -> None:
    from sglang_patches.attention.torch_plans import CausalWork

    num_rows = num_prefix + num_new
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, num_rows, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    query = torch.randn(num_new, NUM_HEADS, HEAD_DIM, generator=generator)
    output = torch.empty_like(query)
    CausalWork(torch.arange(num_rows)).run(query, keys, values, output, SCALE)
    mask = torch.ones(num_new, num_rows, dtype=torch.bool).tril(num_prefix)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double().transpose(0, 1),
        keys.double().repeat_interleave(2, 1).transpose(0, 1),
        values.double().repeat_interleave(2, 1).transpose(0, 1),
        attn_mask=mask,
        scale=SCALE,
    )
    torch.testing.assert_close(output.double(), expected.transpose(0, 1), rtol=0, atol=2e-5)


def test_auto_takes_the_plan_with_less_to_do() -> None:
    from sglang_patches.attention.torch_plans import CascadeWork, SegmentsWork, make_fastest_work

    rng = np.random.default_rng(0)
    bushy = make_step(rng, num_segments=900, system_len=2, max_len=2, one_tree=True)
    assert isinstance(make_fastest_work(bushy, torch.arange(bushy.num_rows)), SegmentsWork)
    long_system = make_step(rng, num_segments=200, system_len=500)
    work = make_fastest_work(long_system, torch.arange(long_system.num_rows))
    assert isinstance(work, CascadeWork)


def test_auto_computes_recomputed_rows_in_blocks() -> None:
    from sglang_patches.attention.torch_plans import BlocksWork, CausalWork, make_fastest_work

    step = make_fused_step(np.random.default_rng(0), share=0.3)
    slots = torch.arange(step.num_rows)
    assert isinstance(make_fastest_work(step, slots), BlocksWork)
    num_task = step.num_new - step.tail_start
    task = Step(step.structure, step.order, step.num_rows - num_task, num_task)
    assert isinstance(make_fastest_work(task, slots), CausalWork)


def test_where_all_context_is_cached_auto_is_one_causal_request_bit_for_bit() -> None:
    from sglang_patches.attention.torch_plans import CausalWork, make_fastest_work

    step = make_step(
        np.random.default_rng(1), num_segments=90, system_len=12, share_cached=1.0, task_len=9
    )
    assert isinstance(make_fastest_work(step, torch.arange(step.num_rows)), CausalWork)
    fastest, expected = run("auto", step)
    torch.testing.assert_close(fastest.double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(fastest, run("cascade", step)[0])
    assert torch.equal(fastest, run("segments", step)[0])
