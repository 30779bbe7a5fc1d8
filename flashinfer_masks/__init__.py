# SPDX-License-Identifier: Apache-2.0
"""From visibility intervals to the attention work of one prompt step: a mask, or better.

    structure = Structure.make(num_tokens, system_len, lens, parents)   # once per request
    step = Step(structure, order, num_prefix, num_new)                  # once per chunk
    plan = PLANS["segments"](step)                                      # once per chunk
    # run: once per layer, by an attention backend; `reference.run_plan` says what to compute

numpy only: this package imports neither depcache nor SGLang, FlashInfer or torch.
"""

from __future__ import annotations

from collections.abc import Callable

from flashinfer_masks.cascade import Batch, CascadePlan, cascade_runs, plan_cascade
from flashinfer_masks.dense import dense_mask, visible_ref
from flashinfer_masks.fused import BlocksPlan, plan_blocks
from flashinfer_masks.masked import MaskedPlan, causal_mask, causal_runs, plan_masked, plan_runs
from flashinfer_masks.packed import PackedMasks, Runs, pack_runs
from flashinfer_masks.ragged import PlanTooLargeError
from flashinfer_masks.segments import SegmentsPlan, plan_segments
from flashinfer_masks.visibility import Step, Structure, StructureError

PLANS: dict[str, Callable[[Step], MaskedPlan | SegmentsPlan | CascadePlan | BlocksPlan]] = {
    "custom_mask": plan_masked,
    "segments": plan_segments,
    "cascade": plan_cascade,
    "blocks": plan_blocks,
}

__all__ = [
    "PLANS",
    "Batch",
    "BlocksPlan",
    "CascadePlan",
    "MaskedPlan",
    "PackedMasks",
    "PlanTooLargeError",
    "Runs",
    "SegmentsPlan",
    "Step",
    "Structure",
    "StructureError",
    "cascade_runs",
    "causal_mask",
    "causal_runs",
    "dense_mask",
    "pack_runs",
    "plan_blocks",
    "plan_cascade",
    "plan_masked",
    "plan_runs",
    "plan_segments",
    "visible_ref",
]
