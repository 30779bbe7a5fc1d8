# SPDX-License-Identifier: Apache-2.0
"""What one forward pass must know about the dependency requests in its batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from flashinfer_masks.visibility import Step
from sglang_patches.contract import Batch, ForwardBatch
from sglang_patches.requests.deviations import DeviatingRows
from sglang_patches.requests.masses import MassRows
from sglang_patches.requests.scoring import ScoredRows
from sglang_patches.requests.state import PendingCopy, RequestState, get_state
from sglang_patches.tiers.host.residency import PendingLoad


@dataclass(frozen=True, slots=True)
class DependencyBatch:
    """Goes with the ForwardBatch of an extend that has a dependency request, or rows to load.

    steps   per request of the batch the rows it computes; None for a plain request
    copies  shifted hits to copy before the first layer
    load    rows to bring from the host tier before that
    scored  rows that the context of their request is scored by
    weighed  rows of flat prompts that are to tell what they give each other
    deviating  contexts whose keys are compared with those under full view
    """

    steps: list[Step | None]
    copies: list[PendingCopy]
    load: PendingLoad | None = None
    scored: list[ScoredRows] = field(default_factory=list[ScoredRows])
    weighed: list[MassRows] = field(default_factory=list[MassRows])
    deviating: list[DeviatingRows] = field(default_factory=list[DeviatingRows])


class _Rids(list[str]):
    """The batch's request ids, carrying what belongs to these requests.

    SGLang copies a ForwardBatch field by field before it runs, so an attribute of the batch
    itself would be lost; this field is taken over as it is.
    """

    dependencies: DependencyBatch


def get_batch(forward_batch: ForwardBatch) -> DependencyBatch | None:
    """The dependencies that `prepare_forward` put with this batch, None for a plain one."""
    rids = forward_batch.rids
    return rids.dependencies if isinstance(rids, _Rids) else None


def prepare_forward(forward_batch: ForwardBatch, batch: Batch) -> None:
    """Set positions, and for an extend the steps and copies, of the dependency requests.

    forward_batch  SGLang's new ForwardBatch; its `positions` are replaced, never written in
                   place (they may alias a buffer of the batch)
    batch          the ScheduleBatch it was made from; rows and requests are in the same order
    """
    if forward_batch.positions is None or forward_batch.forward_mode.is_idle():
        return
    states = [get_state(req) for req in batch.reqs]
    if forward_batch.forward_mode.is_decode():
        if any(states):
            _shift_decode_positions(forward_batch, states)
    elif forward_batch.forward_mode.is_extend():
        # Rows on their way may belong to a request that is gone, and to plain ones.
        load = batch.tree_cache.take_loads()
        batch.tree_cache.note_launch(batch.reqs, sum(forward_batch.extend_seq_lens_cpu))
        if any(states) or load is not None:
            _prepare_extend(forward_batch, batch, states, load)


def _shift_decode_positions(forward_batch: ForwardBatch, states: list[RequestState | None]) -> None:
    offsets = [0 if state is None else state.decode_offset for state in states]
    if any(offsets):
        positions = forward_batch.positions
        offset = torch.tensor(offsets, dtype=positions.dtype).to(positions.device)
        forward_batch.positions = positions + offset


def _prepare_extend(
    forward_batch: ForwardBatch,
    batch: Batch,
    states: list[RequestState | None],
    load: PendingLoad | None,
) -> None:
    positions = forward_batch.positions.clone()
    steps: list[Step | None] = []
    copies: list[PendingCopy] = []
    scored: list[ScoredRows] = []
    deviating: list[DeviatingRows] = []
    weighed: list[MassRows] = []
    start = 0
    for number, (req, state, num_prefix, num_new) in enumerate(
        zip(
            batch.reqs,
            states,
            forward_batch.extend_prefix_lens_cpu,
            forward_batch.extend_seq_lens_cpu,
            strict=True,
        )
    ):
        step = None
        if state is not None and state.plan is not None:
            copy = batch.tree_cache.take_pending(state)
            if copy is not None:
                copies.append(copy)
            try:
                placed = state.row_positions(num_prefix, num_prefix + num_new)
                positions[start : start + num_new] = torch.from_numpy(placed).to(positions)
                order = state.plan.order
                step = Step(state.structure, order, num_prefix, num_new)
                if state.scores is not None:
                    rows = state.scores.rows(order, num_prefix, num_new, number, start)
                    if isinstance(rows, ScoredRows):
                        scored.append(rows)
                    elif rows is not None:
                        deviating.append(rows)
                if state.masses is not None:
                    given = state.masses.rows(order, num_prefix, num_new, number, start)
                    weighed += [] if given is None else [given]
            except Exception as error:
                batch.tree_cache.faults.end(req, "place the request's rows", error)
        steps.append(step)
        start += num_new
    forward_batch.positions = positions
    rids = _Rids(forward_batch.rids)
    rids.dependencies = DependencyBatch(steps, copies, load, scored, weighed, deviating)
    forward_batch.rids = rids


def merge_copies(copies: list[PendingCopy]) -> PendingCopy:
    """One copy that does the work of all."""
    return PendingCopy(
        sources=np.concatenate([copy.sources for copy in copies]),
        targets=np.concatenate([copy.targets for copy in copies]),
        homes=np.concatenate([copy.homes for copy in copies]),
        placed=np.concatenate([copy.placed for copy in copies]),
    )
