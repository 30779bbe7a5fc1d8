# SPDX-License-Identifier: Apache-2.0
"""A small Llama with random weights, to measure with where no download is wanted.

Made once, from a seed, into the user's cache folder: 30 million parameters, seven times those of
depcache-tiny, or 125 million, with the tokenizer of depcache-tiny. Its answers are noise; what is
measured with it (tokens, reuse, time to first token) does not depend on the weights: every token
that it chooses has text, since servers hold back parts of characters. `8b` has the
shape of Llama-3-8B and no weights on disk: the server draws them (`load_flags`), on a GPU.

`python -m depcache.serving.random_model [FOLDER] [--size 125m]` makes it, if it is not there, and
prints its folder. Needs the extra `server`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError, shorten
from depcache.install_hints import install_command
from depcache.serving.tiny import TINY_NAME, resolve_model

MARKER_FILE = "depcache_demo.json"
"""The file beside a model that this module made; it says that it is not trained."""

RECIPE = 3
"""Counts up when the model is made in another way, so that an old one is not taken for it."""

SEED = 20261120


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a Llama.

    vocab_size   None is that of the tokenizer
    has_weights  on disk, in float32; else the server draws them, in bfloat16
    """

    width: int
    mlp: int
    num_layers: int
    num_kv_heads: int
    head_dim: int = 64
    vocab_size: int | None = None
    has_weights: bool = True


SIZES = {
    "30m": Shape(512, 1536, 9, num_kv_heads=4),
    "125m": Shape(1024, 2816, 10, num_kv_heads=8),
    "8b": Shape(4096, 14336, 32, 8, head_dim=128, vocab_size=128256, has_weights=False),
}
_MAX_LEN = 32768
_TIMEOUT_S = 300.0


def default_folder(size: str = "30m") -> Path:
    """Where this model is kept: below $XDG_CACHE_HOME, or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"demo-model-{RECIPE}" + ("" if size == "30m" else f"-{size}")
    return Path(cache) / "depcache" / name


def find_model(name: str) -> str:
    """What to load for `depcache-tiny`, for one of `SIZES` (random weights), or for any other.

    Random weights are made if they are not there; others stay what they are.
    """
    return str(ensure_model(size=name)) if name in SIZES else resolve_model(name)


def is_trained(folder: str | Path) -> bool:
    """False for a model that this script made."""
    return not (Path(folder) / MARKER_FILE).exists()


def load_flags(folder: str | Path) -> list[str]:
    """Flags of a server, SGLang's or vLLM's, that is to draw the weights that are not there."""
    has_weights = is_trained(folder) or any(Path(folder).glob("*.safetensors"))
    return [] if has_weights else ["--load-format", "dummy"]


def ensure_model(folder: Path | None = None, size: str = "30m") -> Path:
    """The folder of this model, which is made if it is not there (about 20 seconds).

    size  one of `SIZES`

    Raises ConfigError when it cannot be made.
    """
    folder = folder or default_folder(size)
    if (folder / MARKER_FILE).exists():
        return folder
    # In a process of its own: the demo then measures without torch in memory.
    command = [sys.executable, "-m", "depcache.serving.random_model", str(folder), "--size", size]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"making the random model took over {_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        raise ConfigError(
            f"the random model cannot be made in {str(folder)!r} ({shorten(lines[-1])}): "
            f"{install_command('server')}, or name a model with --model"
        )
    return folder


def make_model(folder: Path, size: str = "30m") -> None:
    """Make the model in `folder`; all files appear at once, or none."""
    from transformers import AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        draft = Path(name) / "model"
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(TINY_NAME))
        tokenizer.model_max_length = _MAX_LEN
        shape = SIZES[size]
        tokenizer.save_pretrained(draft)
        if shape.vocab_size is not None:
            _fill_vocabulary(draft / "tokenizer.json", shape.vocab_size)
        num_parameters = _make_weights(draft, tokenizer, shape)
        marker = {"trained": False, "recipe": RECIPE, "seed": SEED, "parameters": num_parameters}
        (draft / MARKER_FILE).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        if (folder / MARKER_FILE).exists():
            return  # someone else was faster
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)


def _fill_vocabulary(file: Path, size: int) -> None:
    """Words that no text has, so that whatever a model answers can be read."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"Ġunused{i}": i for i in range(len(vocabulary), size)}  # Ġ: a blank, in bytes
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _make_weights(folder: Path, tokenizer: Any, shape: Shape) -> int:
    """Draw and save the weights, or the shape alone; returns the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab_size or -(-len(tokenizer) // 64) * 64,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.width // shape.head_dim,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=_MAX_LEN,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="float32" if shape.has_weights else "bfloat16",
        architectures=["LlamaForCausalLM"],
    )
    torch.manual_seed(SEED)
    with torch.device("cpu" if shape.has_weights else "meta"):
        model = LlamaForCausalLM(config)
    if shape.has_weights:
        # A logit of 0 is never the largest of thousands.
        with torch.no_grad():
            model.lm_head.weight[_tokens_without_text(tokenizer, config.vocab_size)] = 0
    (model if shape.has_weights else config).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def _tokens_without_text(tokenizer: Any, vocab_size: int) -> list[int]:
    """Ids of blanks, of parts of characters, of special tokens, and those that no token has."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], skip_special_tokens=True)
    without = [i for i, text in enumerate(texts) if not text.strip() or "\ufffd" in text]
    return without + list(range(len(tokenizer), vocab_size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a model of random weights.")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--size", choices=SIZES, default="30m")
    arguments = parser.parse_args()
    target = arguments.folder or default_folder(arguments.size)
    if not (target / MARKER_FILE).exists():
        make_model(target, arguments.size)
    print(target)
