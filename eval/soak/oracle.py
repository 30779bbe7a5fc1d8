# SPDX-License-Identifier: Apache-2.0
"""What the model says, computed another way: HuggingFace, eager float32, dense mask, no cache.

It shares no code with what it judges. An answer is judged in one pass over prompt and answer:
each of its tokens must be the likeliest one at its place, with these log-probabilities.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM


class Oracle:
    """One set of weights."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def score(
        self, input_ids: list[int], structure: dict[str, Any] | None, answer: list[int]
    ) -> np.ndarray:
        """(len(answer), vocab_size) float32: log-probabilities at the place of each token of it.

        structure  `custom_params` in ids form; None for a plain prompt
        """
        # The last token of the answer is never an input.
        tokens = input_ids + answer[:-1]
        num_new = len(answer) - 1
        mask = torch.from_numpy(~dense_mask(len(input_ids), structure, num_new))
        hidden = torch.zeros(mask.shape).masked_fill_(mask, torch.finfo(torch.float32).min)
        where = positions(len(input_ids), structure, num_new)
        logits = self._model(
            input_ids=torch.tensor([tokens]),
            position_ids=torch.from_numpy(where)[None],
            attention_mask=hidden[None, None],
            use_cache=False,
            logits_to_keep=len(answer),
        ).logits[0]
        return torch.log_softmax(logits.float(), dim=-1).numpy()


def dense_mask(num_prompt: int, structure: dict[str, Any] | None, num_new: int = 0) -> np.ndarray:
    """(n, n) bool with n = num_prompt + num_new: row i attends to column j.

    A token of system or context attends to its ancestors and itself, a token of the task or of
    the answer to everything before it.
    """
    mask = np.tri(num_prompt + num_new, dtype=bool)
    for index, parent in enumerate(_parents(structure)):
        mask[index] = mask[parent] if parent >= 0 else False
        mask[index, index] = True
    return mask


def positions(num_prompt: int, structure: dict[str, Any] | None, num_new: int = 0) -> np.ndarray:
    """(num_prompt + num_new,) int64: where each token sits in the structure's layout."""
    if structure is None:
        return np.arange(num_prompt + num_new)
    layout = structure["depcache_layout"]
    system = structure["depcache_system_len"]
    lens, parents = structure["depcache_segment_lens"], structure["depcache_segment_parents"]
    found = list(range(system))
    stops: list[int] = []  # position behind each segment
    tree_start, tree_stop = system, system
    for length, parent in zip(lens, parents, strict=True):
        if parent == -1:
            tree_start = tree_stop
        if layout == "sequential":
            start = len(found)
        elif parent >= 0:
            start = stops[parent]
        else:
            start = tree_start if layout == "staggered" else system
        found += range(start, start + length)
        stops.append(start + length)
        tree_stop = max(tree_stop, start + length)
    task = max(found, default=-1) + 1
    found += range(task, task + num_prompt - len(found) + num_new)
    return np.array(found, np.int64)


def _parents(structure: dict[str, Any] | None) -> list[int]:
    """For each token of system and context the one it follows; -1 for a first one."""
    if structure is None:
        return []
    system = structure["depcache_system_len"]
    lens, parents = structure["depcache_segment_lens"], structure["depcache_segment_parents"]
    found = list(range(-1, system - 1))
    last: list[int] = []  # token of each segment
    for length, parent in zip(lens, parents, strict=True):
        start = len(found)
        found.append(last[parent] if parent >= 0 else system - 1)
        found += range(start, start + length - 1)
        last.append(start + length - 1)
    return found
