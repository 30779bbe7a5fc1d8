# SPDX-License-Identifier: Apache-2.0
"""A batch of prompts in a paged pool, and what the attention of each must be alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flashinfer_masks import Step
from flashinfer_masks.batches import PlainStep
from tests.flashinfer_masks.make import make_step, make_structure, mask_of


def draw_steps(seed: int, *, recomputes: bool = False) -> list[Step | PlainStep]:
    """A plain prompt and three of GraphRAG, what is cached of them being their beginning.

    recomputes  of the second all of the context is cached and a third computed again
    """
    rng = np.random.default_rng(seed)
    steps: list[Step | PlainStep] = [PlainStep(int(rng.integers(0, 300)), 40)]
    for number in range(3):
        segments: list[tuple[int, int]] = []
        for _ in range(int(rng.integers(1, 6))):
            path = [len(segments)]
            segments.append((-1, int(rng.integers(1, 9))))
            for _ in range(int(rng.integers(0, 12))):
                del path[int(rng.integers(1, len(path) + 1)) :]
                segments.append((path[-1], int(rng.integers(1, 30))))
                path.append(len(segments) - 1)
        structure = make_structure(int(rng.integers(0, 40)), segments, task_len=20)
        if recomputes and number == 1:
            context = np.arange(structure.system_len, structure.task_start)
            structure = structure.recompute(context[rng.random(len(context)) < 1 / 3])
            hits = np.setdiff1d(np.arange(structure.task_start), structure.recomputed).tolist()
        else:
            hits = list(range(int(rng.integers(0, structure.task_start))))
        steps.append(make_step(structure, hits, 0, structure.num_tokens - len(hits)))
    return steps


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(Q, H, D) over (K, kv heads, D) in plain torch: attention, and log-sum-exp of base 2."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    output = torch.einsum("hqk,khd->qhd", (scores - lse.unsqueeze(-1)).exp(), values)
    return output, (lse / np.log(2)).T


@dataclass(frozen=True, slots=True, eq=False)
class PagedBatch:
    """Slots in any order, prompts at any place of the pool.

    query         (all new rows, num_heads, head_dim)
    keys, values  (num_slots, num_kv_heads, head_dim)
    req_to_token  (requests, rows) int32; pool_indices (P,) the row of each prompt
    slots         of the rows of each prompt
    """

    steps: Sequence[Step | PlainStep]
    query: Tensor
    keys: Tensor
    values: Tensor
    req_to_token: Tensor
    pool_indices: Tensor
    slots: Sequence[Tensor]

    @classmethod
    def make(
        cls,
        steps: Sequence[Step | PlainStep],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> PagedBatch:
        rng = torch.Generator().manual_seed(len(steps))
        num_rows = [step.num_rows for step in steps]
        num_slots = sum(num_rows) + 7
        slots = torch.randperm(num_slots, generator=rng)[: sum(num_rows)].split(num_rows)
        pool_indices = torch.arange(len(steps)).flip(0) + 2
        req_to_token = torch.full((len(steps) + 3, max(num_rows)), -1, dtype=torch.int32)
        for index, own in zip(pool_indices, slots, strict=True):
            req_to_token[index, : len(own)] = own.int()

        def draw(*shape: int) -> Tensor:
            values = torch.randn(*shape, head_dim, generator=rng, dtype=torch.float64)
            return values.to(device, dtype)

        return cls(
            steps,
            draw(sum(step.num_new for step in steps), num_heads),
            draw(num_slots, num_kv_heads),
            draw(num_slots, num_kv_heads),
            req_to_token.to(device),
            pool_indices.to(device),
            [own.to(device) for own in slots],
        )

    def expected(self, scale: float) -> Tensor:
        """What each prompt alone gives under its dense mask, in float64."""
        parts = []
        queries = self.query.double().split([step.num_new for step in self.steps])
        for step, query, slots in zip(self.steps, queries, self.slots, strict=True):
            keys, values = self.keys[slots].double(), self.values[slots].double()
            mask = torch.from_numpy(mask_of(step)).to(query.device)
            parts.append(attend(query, keys, values, mask, scale)[0])
        return torch.cat(parts)
