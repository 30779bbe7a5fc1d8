# SPDX-License-Identifier: Apache-2.0
"""A HuggingFace model whose rows attend to cached KV that a batch shares, in float32.

The model is as `transformers` has it but for its attention, which is told for each forward pass
what is cached and who sees what:

    keys of one row   | shared by the batch | own, from earlier passes | of this pass |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IMPLEMENTATION = "depcache_chunks"

KV = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (..., num_kv_heads, num_tokens, head_dim) float32."""


@dataclass(frozen=True, eq=False)
class Remedy:
    """Softer or sharper attention of the task to its context: adaptive parallel encoding (APE).

    temperature  (batch,) float32: scores of context keys are divided by it
    scale        (batch,) float32: the log of their summed weight is multiplied by it
    context      (num_keys,) bool: which of the keys are context

    Where both are 1 nothing changes.
    """

    temperature: Tensor
    scale: Tensor
    context: Tensor


@dataclass(eq=False)
class _State:
    shared: KV | None
    own: Sequence[KV]
    remedy: Remedy | None
    kv: KV = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Pass:
    """What a forward pass computed.

    logits   (batch, num_kept, vocab_size) float32, of the last rows
    kv       of its rows: (batch, num_kv_heads, num_rows, head_dim) each
    queries  of each layer, turned to their positions: (batch, num_heads, num_rows, head_dim)
    """

    logits: Tensor
    kv: KV
    queries: list[Tensor]


class Reader:
    """One model in float32.

    folder  a model of HuggingFace whose rotation is that of Llama (channel i with i + half)
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _attend)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=IMPLEMENTATION
        ).eval()
        rotary = self.model.model.rotary_emb
        self._inv_freq: Tensor = rotary.inv_freq.double()

    @property
    def end(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ids = self.model.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return frozenset(ids if isinstance(ids, list) else [ids])

    @torch.no_grad()
    def run(
        self,
        tokens: NDArray[Any],
        positions: NDArray[Any],
        visible: NDArray[np.bool_],
        *,
        shared: KV | None = None,
        own: Sequence[KV] = (),
        remedy: Remedy | None = None,
        num_kept: int = 1,
    ) -> Pass:
        """Compute rows.

        tokens     (batch, num_rows) int
        positions  (batch, num_rows) int: RoPE position of each
        visible    (batch or 1, num_rows, num_keys) bool, the keys as the module says
        shared     (num_kv_heads, num_shared, head_dim) of each layer, not modified
        own        runs of tokens, (batch, num_kv_heads, num_own, head_dim) of each layer, not
                   modified
        num_kept   logits of the last rows that are wanted, at least 1
        """
        state = _State(shared, own, remedy)
        mask = torch.zeros(visible.shape).masked_fill_(
            torch.from_numpy(~visible), torch.finfo(torch.float32).min
        )
        logits = self.model(
            input_ids=torch.tensor(tokens),
            position_ids=torch.tensor(positions),
            attention_mask=mask[:, None],
            use_cache=False,
            logits_to_keep=num_kept,
            chunks_state=state,
        ).logits
        return Pass(logits, state.kv, state.queries)

    def turn(self, kv: KV, shifts: NDArray[Any]) -> KV:
        """The KV with each key moved by so many positions; values are as they were.

        kv      (..., num_tokens, head_dim) of each layer, not modified
        shifts  (num_tokens,) int
        """
        angles = torch.from_numpy(np.asarray(shifts)).double()[:, None] * self._inv_freq
        cos, sin = angles.cos().float(), angles.sin().float()
        turned: KV = []
        for keys, values in kv:
            low, high = keys.chunk(2, dim=-1)
            turned.append((torch.cat((low * cos - high * sin, high * cos + low * sin), -1), values))
        return turned


def take(kv: KV, index: Any) -> KV:
    """The KV of some tokens."""
    return [(keys[..., index, :], values[..., index, :]) for keys, values in kv]


def join(parts: list[KV]) -> KV:
    """The KV of several runs of tokens, one behind the other."""
    return [
        (torch.cat([keys for keys, _ in layer], -2), torch.cat([values for _, values in layer], -2))
        for layer in zip(*parts, strict=True)
    ]


def attention_of(
    queries: Tensor, keys: Tensor, scaling: float, visible: NDArray[np.bool_]
) -> Tensor:
    """Softmax weights (num_heads, num_rows, num_keys) of one layer.

    queries  (num_heads, num_rows, head_dim)
    keys     (num_kv_heads, num_keys, head_dim)
    visible  (num_rows, num_keys) bool
    """
    groups = queries.shape[0] // keys.shape[0]
    scores = queries @ keys.repeat_interleave(groups, 0).transpose(-1, -2) * scaling
    scores = scores.masked_fill(torch.from_numpy(~visible), torch.finfo(torch.float32).min)
    return scores.softmax(-1)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    chunks_state: _State,
    **_: Any,
) -> tuple[Tensor, None]:
    state, layer = chunks_state, len(chunks_state.kv)
    state.kv.append((key, value))
    state.queries.append(query)
    batch, num_heads, num_rows, width = query.shape
    num_kv_heads = key.shape[1]
    # Heads that share keys stand behind each other: (batch, num_kv_heads, groups * rows, width).
    grouped = query.reshape(batch, num_kv_heads, -1, width)
    wide = grouped.transpose(0, 1).reshape(num_kv_heads, -1, width)
    scores: list[Tensor] = []
    if state.shared is not None:
        found = wide @ state.shared[layer][0].transpose(-1, -2)
        scores.append(found.view(num_kv_heads, batch, -1, found.shape[-1]).transpose(0, 1))
    scores += [grouped @ run[layer][0].transpose(-1, -2) for run in state.own]
    scores.append(grouped @ key.transpose(-1, -2))
    lens = [each.shape[-1] for each in scores]
    joined = torch.cat(scores, -1).view(batch, num_kv_heads, -1, num_rows, sum(lens))
    joined = joined.mul_(scaling).add_(attention_mask[:, :, None])
    if state.remedy is not None:
        joined = _remedied(joined, state.remedy)
    weights = joined.softmax(-1).view(batch, num_kv_heads, -1, sum(lens))
    parts = list(weights.split(lens, -1))
    out = parts.pop() @ value
    for run in reversed(state.own):
        out += parts.pop() @ run[layer][1]
    if state.shared is not None:
        rows = parts.pop().transpose(0, 1).reshape(num_kv_heads, -1, lens[0])
        summed = rows @ state.shared[layer][1]
        out += summed.view(num_kv_heads, batch, -1, width).transpose(0, 1)
    out = out.view(batch, num_heads, num_rows, width)
    return out.transpose(1, 2), None


def _remedied(scores: Tensor, remedy: Remedy) -> Tensor:
    """(batch, kv heads, groups, rows, keys), with the context's scores changed."""
    shape = (-1, 1, 1, 1, 1)
    warm = scores / remedy.temperature.view(shape)
    mass = warm.masked_fill(~remedy.context, torch.finfo(torch.float32).min).logsumexp(
        -1, keepdim=True
    )
    warm += (remedy.scale.view(shape) - 1) * mass
    return torch.where(remedy.context, warm, scores)
