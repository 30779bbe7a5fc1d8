# SPDX-License-Identifier: Apache-2.0
"""Tiny HuggingFace models with random weights, made on the spot: nothing is downloaded.

The weights are sharpened (larger than a fresh initialization), so that attention is far
from uniform and a wrong mask or a wrong position changes the answer visibly. That amplifies
rounding too; where that depends on which requests meet in a batch, `MILD_MODEL` serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

VOCAB_SIZE = 1024
MAX_POSITIONS = 8192
WEIGHT_STD = 0.12
QUERY_KEY_GAIN = 1.6
BIAS_STD = 0.3

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

_ROPE_THETA = 10000.0

MILD_MODEL = "llama_mild"
"""A Llama whose weights are as a fresh initialization leaves them."""

# name -> (HuggingFace model type, what differs from `_SHAPE`)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_gqa": ("llama", {}),
    "llama_mha": ("llama", {"num_key_value_heads": 4}),
    "llama3_rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": _ROPE_THETA,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "llama_yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": _ROPE_THETA,
                "factor": 4.0,
                "original_max_position_embeddings": MAX_POSITIONS // 4,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "llama_wide": ("llama", {"head_dim": 128}),  # FlashInfer has no heads of 32 channels
}

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(name: str, folder: Path, seed: int = 3) -> Path:
    """Write the model called `name` with its tokenizer into `folder`; returns `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, changes = ("llama", {}) if name == MILD_MODEL else MODELS[name]
    config = AutoConfig.for_model(kind, **{**_SHAPE, **changes}, dtype="float32")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    if name != MILD_MODEL:
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                _sharpen(parameter_name, parameter)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def _sharpen(name: str, parameter: Any) -> None:
    if parameter.dim() == 2:
        parameter.normal_(0.0, WEIGHT_STD)
        if "q_proj" in name or "k_proj" in name:
            parameter.mul_(QUERY_KEY_GAIN)
    elif name.endswith("bias"):  # Qwen2's are zero when fresh
        parameter.normal_(0.0, BIAS_STD)


def make_tokenizer() -> Any:
    """A byte-level BPE tokenizer trained on the demo's facts, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=MAX_POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    assert len(fast) == VOCAB_SIZE
    return fast


def _corpus() -> Iterator[str]:
    folder = resources.files("depcache").joinpath("demo", "wellknown")
    for line in folder.joinpath("triples.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        yield line.replace("\t", " ")
    for line in folder.joinpath("questions.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["question"]
