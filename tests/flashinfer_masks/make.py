# SPDX-License-Identifier: Apache-2.0
"""Random prompts and steps for hypothesis, and the helpers that compare a plan with the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from flashinfer_masks import PackedMasks, Step, Structure, causal_mask, dense_mask
from flashinfer_masks.batches import PlainStep
from flashinfer_masks.ragged import make_indptr
from flashinfer_masks.reference import Plan, attend, count_pairs, run_plan


def pack_masks(masks: Sequence[np.ndarray]) -> PackedMasks:
    """Packs one bool array (queries, keys) per request, any of them empty, as numpy packs bits."""
    sizes = np.array([mask.size for mask in masks], np.int64)
    mask_indptr = make_indptr((sizes + 7) // 8, "bytes of packed mask")
    packed = [np.packbits(mask, bitorder="little") for mask in masks]
    bits = np.concatenate(packed) if packed else np.empty(0, np.uint8)
    return PackedMasks(bits, mask_indptr)


def make_structure(
    system_len: int,
    segments: list[tuple[int, int]],
    task_len: int,
    joins: dict[int, list[int]] | None = None,
) -> Structure:
    """From (parent, number of tokens) of each segment, in pre-order."""
    lens = np.array([num_tokens for _, num_tokens in segments], np.int64)
    parents = np.array([parent for parent, _ in segments], np.int64)
    num_tokens = system_len + int(lens.sum()) + task_len
    return Structure.make(num_tokens, system_len, lens, parents, joins)


def make_step(structure: Structure, hits: list[int], num_computed: int, num_new: int) -> Step:
    """Rows [hits | other tokens of system and context in pre-order | task].

    num_computed  rows behind the hits that earlier chunks computed
    """
    missed = np.setdiff1d(np.arange(structure.task_start), np.array(hits, np.int64))
    task = np.arange(structure.task_start, structure.num_tokens)
    order = np.concatenate((np.array(hits, np.int64), missed, task))
    return Step(structure, order, len(hits) + num_computed, num_new)


@st.composite
def structures(
    draw: st.DrawFn,
    max_segments: int = 12,
    max_segment_len: int = 5,
    max_trees: int | None = None,
    system_lens: st.SearchStrategy[int] = st.integers(0, 6),
) -> Structure:
    """Any forest: a new segment hangs below the last one or one of its ancestors, or is a root."""
    segments: list[tuple[int, int]] = []
    open_path: list[int] = []  # the last segment and its ancestors, root first
    num_trees = 0
    for segment in range(draw(st.integers(0, max_segments))):
        fewest = 1 if segment and num_trees == max_trees else 0
        depth = draw(st.integers(min(fewest, len(open_path)), len(open_path)))
        del open_path[depth:]
        num_trees += depth == 0
        parent = open_path[-1] if open_path else -1
        segments.append((parent, draw(st.integers(1, max_segment_len))))
        open_path.append(segment)
    return make_structure(draw(system_lens), segments, task_len=draw(st.integers(1, 4)))


@st.composite
def joined_structures(draw: st.DrawFn, *, recomputes: bool = False) -> Structure:
    """Forests some of whose trees see segments of earlier trees.

    recomputes  some tokens of the context see everything before them
    """
    plain = draw(structures(max_segments=10, max_segment_len=3))
    parents = plain.parents.tolist()
    joins: dict[int, list[int]] = {}
    for root in np.flatnonzero(plain.parents < 0).tolist():
        wanted = draw(st.sets(st.integers(0, root - 1), max_size=3)) if root else set()
        # Normal form, by the definition: leave out what another one that is wanted sees.
        seen = {segment: _all_seen(segment, parents, joins) for segment in wanted}
        if kept := sorted(a for a in wanted if not any(a in seen[b] for b in wanted - {a})):
            joins[root] = kept
    structure = Structure.make(plain.num_tokens, plain.system_len, plain.lens, plain.parents, joins)
    if not recomputes:
        return structure
    context = range(structure.system_len, structure.task_start)
    chosen = draw(st.sets(st.sampled_from(context))) if context else set()
    return structure.recompute(np.array(sorted(chosen), np.int64))


def _all_seen(segment: int, parents: list[int], joins: dict[int, list[int]]) -> set[int]:
    above = joins.get(segment, []) if parents[segment] < 0 else [parents[segment]]
    return {segment}.union(*(_all_seen(other, parents, joins) for other in above))


@st.composite
def steps(
    draw: st.DrawFn,
    structure_strategy: st.SearchStrategy[Structure] | None = None,
    closed_hits: bool = True,
) -> Step:
    """Any step of any prompt: hits in any order, a chunk cut anywhere, generated rows behind.

    closed_hits  what a prefix tree yields: each hit's ancestors are hits too. False: any
                 tokens, as when some are recomputed although what is below them is cached
    """
    structure = draw(structures() if structure_strategy is None else structure_strategy)
    if closed_hits:
        hits = _draw_closed_hits(draw, structure)
    else:
        is_hit = st.lists(
            st.booleans(), min_size=structure.task_start, max_size=structure.task_start
        )
        hits = np.flatnonzero(np.array(draw(is_hit), bool)).tolist()
    hits = draw(st.permutations(np.setdiff1d(hits, structure.recomputed).tolist()))
    num_generated = draw(st.sampled_from([0, 0, 0, 1, 5]))
    num_to_compute = structure.num_tokens + num_generated - len(hits)
    start = draw(st.one_of(st.just(0), st.integers(0, num_to_compute - 1)))
    stop = draw(st.one_of(st.just(num_to_compute), st.integers(start + 1, num_to_compute)))
    return make_step(structure, hits, start, stop - start)


def batches() -> st.SearchStrategy[list[Step | PlainStep]]:
    """Up to four prompts, plain ones among them."""
    plain = st.builds(PlainStep, num_prefix=st.integers(0, 9), num_new=st.integers(1, 6))
    return st.lists(st.one_of(all_steps(), plain), min_size=1, max_size=4)


def all_steps() -> st.SearchStrategy[Step]:
    """Steps of forests, of joined ones, and of those with recomputed tokens."""
    recomputed = joined_structures(recomputes=True)
    return st.one_of(steps(), steps(joined_structures()), steps(recomputed, closed_hits=False))


def mask_of(step: Step | PlainStep) -> np.ndarray:
    """bool (num_new, num_rows), what each new row sees."""
    if isinstance(step, PlainStep):
        return causal_mask(step.num_new, step.num_rows)
    return dense_mask(step)


def _draw_closed_hits(draw: st.DrawFn, structure: Structure) -> list[int]:
    """A cached part of the system, then of each segment whose parent is cached whole."""
    system_hits = draw(
        st.one_of(st.just(structure.system_len), st.integers(0, structure.system_len))
    )
    hits = list(range(system_hits))
    is_whole: list[bool] = []
    for start, num_tokens, parent in zip(
        structure.starts.tolist(), structure.lens.tolist(), structure.parents.tolist(), strict=True
    ):
        above = is_whole[parent] if parent >= 0 else system_hits == structure.system_len
        num_hits = draw(st.sampled_from([0, num_tokens, num_tokens // 2])) if above else 0
        is_whole.append(num_hits == num_tokens)
        hits += range(start, start + num_hits)
    return hits


def assert_plan_is_exact(plan: Plan, step: Step) -> None:
    """The plan covers the oracle's pairs, each once, and computes the oracle's attention."""
    mask = dense_mask(step)
    np.testing.assert_array_equal(count_pairs(plan, *mask.shape), mask.astype(np.int64))
    q, k, v = make_qkv(step)
    expected, _ = attend(q, k, v, mask)
    np.testing.assert_allclose(run_plan(plan, q, k, v), expected, rtol=0, atol=1e-12)


def make_qkv(step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random float64 queries, keys and values of two heads, for `reference`."""
    rng = np.random.default_rng(step.num_rows)
    shape = (2, 4)
    return (
        2 * rng.standard_normal((step.num_new, *shape)),
        2 * rng.standard_normal((step.num_rows, *shape)),
        rng.standard_normal((step.num_rows, *shape)),
    )
