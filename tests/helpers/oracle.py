# SPDX-License-Identifier: Apache-2.0
"""The oracle: HuggingFace in eager float32, with a dense mask and explicit positions.

It shares no code with what it judges. An answer is judged in one pass: the model is run over
prompt and answer together, and token k of the answer must be the likeliest one at its place
(by induction the answer is then the greedy continuation), with these log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from tests.helpers.prompts import TreePrompt


class Oracle:
    """Recomputes everything, whatever any cache holds."""

    def __init__(self, model_path: Path) -> None:
        # Tiny matrices: threads that wait for each other cost up to a hundred times the work
        # when something else runs on the machine.
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def score(self, prompt: TreePrompt, answer: list[int]) -> torch.Tensor:
        """(len(answer), vocab_size) float32 log-probabilities of each token of the answer."""
        # The last token of the answer is never an input.
        new = answer[:-1]
        mask = _additive(prompt.mask(len(new)))
        return self._run(prompt, new, mask, slice(prompt.num_tokens - 1, None))

    @torch.no_grad()
    def score_task(self, prompt: TreePrompt) -> torch.Tensor:
        """(len(task) - 1, vocab_size): log-probabilities of the task's tokens but the first."""
        mask = _additive(prompt.mask())
        return self._run(prompt, [], mask, slice(prompt.num_context, -1))

    @torch.no_grad()
    def score_causal(self, prompt: TreePrompt) -> torch.Tensor:
        """(1, vocab_size) of the next token if every token attended to all before it. A control."""
        mask = torch.zeros(prompt.num_tokens, prompt.num_tokens)
        mask = mask.masked_fill(torch.ones_like(mask).triu(1).bool(), torch.finfo(mask.dtype).min)
        return self._run(prompt, [], mask, slice(prompt.num_tokens - 1, None))

    def _run(
        self, prompt: TreePrompt, new: list[int], mask: torch.Tensor, rows: slice
    ) -> torch.Tensor:
        logits = self.model(
            input_ids=torch.tensor([prompt.tokens + new]),
            position_ids=torch.from_numpy(prompt.positions_with(len(new)))[None],
            attention_mask=mask[None, None],
            use_cache=False,
        ).logits[0, rows]
        return torch.log_softmax(logits.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class Reuse:
    """Context tokens by where their KV came from."""

    shared: int
    shifted: int
    missed: int


@dataclass(slots=True)
class _Cached:
    """One token's KV: keys as rotated for position `home`, (num_layers, num_kv_heads, head_dim)."""

    keys: torch.Tensor
    values: torch.Tensor
    home: int


class ShiftOracle:
    """Computes what a cache that moves keys must compute: path of tokens -> KV at its home.

    A path is found whole from its first token down, its keys are turned from home to where
    they are now, the rest is computed on top; what was computed is kept, the first copy
    staying. Layouts do not share KV. It never evicts.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.model = oracle.model
        # The frequencies with any scaling in them. YaRN's attention factor is in the cached
        # keys already, and a turn must not apply it again.
        self.inv_freq: torch.Tensor = self.model.model.rotary_emb.inv_freq.float()
        self.store: dict[tuple[Any, ...], _Cached] = {}

    @torch.no_grad()
    def score(self, prompt: TreePrompt, answer: list[int]) -> tuple[torch.Tensor, Reuse]:
        """As `Oracle.score`, with what was reused; what was missed is cached."""
        assert not prompt.is_plain
        new = answer[:-1]
        num_tokens = prompt.num_tokens + len(new)
        found = [self.store.get(self._key(prompt, i)) for i in range(prompt.num_context)]
        hits = [i for i, cached in enumerate(found) if cached is not None]
        is_miss = np.ones(num_tokens, bool)
        is_miss[hits] = False
        misses = np.flatnonzero(is_miss)

        cache = DynamicCache()
        used = [cached for cached in found if cached is not None]
        placed = torch.tensor([prompt.positions[i] for i in hits])
        if used:
            homes = torch.tensor([cached.home for cached in used])
            keys = torch.stack([cached.keys for cached in used], 2)
            keys = turn(keys, homes, placed, self.inv_freq)
            values = torch.stack([cached.values for cached in used], 2)
            for layer in range(keys.shape[0]):
                cache.update(keys[layer][None], values[layer][None], layer)
        order = np.concatenate((np.array(hits, np.int64), misses))
        mask = _additive(prompt.mask(len(new))[misses][:, order])
        tokens = np.array(prompt.tokens + new)
        result = self.model(
            input_ids=torch.from_numpy(tokens[misses])[None],
            position_ids=torch.from_numpy(prompt.positions_with(len(new))[misses])[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
        )
        self._keep(prompt, misses, result.past_key_values, len(hits))
        num_shifted = sum(
            cached.home != prompt.positions[i] for i, cached in zip(hits, used, strict=True)
        )
        reuse = Reuse(len(hits) - num_shifted, num_shifted, prompt.num_context - len(hits))
        logits = result.logits[0, -len(answer) :]
        return torch.log_softmax(logits.float(), dim=-1), reuse

    def _keep(self, prompt: TreePrompt, misses: np.ndarray, cache: Any, num_hits: int) -> None:
        keys = torch.stack([layer.keys[0, :, num_hits:] for layer in cache.layers])
        values = torch.stack([layer.values[0, :, num_hits:] for layer in cache.layers])
        # Where trees begin alike, the first one's beginning is kept. Where keys move, KV below
        # the other's beginning has another past, and is not kept at all.
        left_out: set[int] = set()
        for row, index in enumerate(misses.tolist()):
            key = self._key(prompt, index)
            if index >= prompt.num_context:
                break
            if key in self.store or prompt.parents[index] in left_out:
                if prompt.layout != "tree":
                    left_out.add(index)
                if key in self.store or index in left_out:
                    continue
            self.store[key] = _Cached(
                keys[:, :, row].clone(), values[:, :, row].clone(), prompt.positions[index]
            )

    @staticmethod
    def _key(prompt: TreePrompt, index: int) -> tuple[Any, ...]:
        return prompt.layout, prompt.keys[index]


def turn(
    keys: torch.Tensor, homes: torch.Tensor, placed: torch.Tensor, inv_freq: torch.Tensor
) -> torch.Tensor:
    """Keys (..., num_tokens, head_dim), each turned from its home to its place (num_tokens,).

    Channel i turns with channel i + head_dim // 2, as in HuggingFace's Llama and Qwen2. The
    two angles are rounded to float32 as HuggingFace rounds them, the rest is float64: the
    result is the key that HuggingFace would have computed at the place.
    """
    at_home, at_place = homes.float()[:, None] * inv_freq, placed.float()[:, None] * inv_freq
    angles = at_place.double() - at_home.double()
    low, high = keys.double().chunk(2, dim=-1)
    turned = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1).float()


def _additive(mask: np.ndarray) -> torch.Tensor:
    hidden = torch.from_numpy(~mask)
    return torch.zeros(mask.shape).masked_fill_(hidden, torch.finfo(torch.float32).min)
