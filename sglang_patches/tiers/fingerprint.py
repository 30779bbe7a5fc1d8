# SPDX-License-Identifier: Apache-2.0
"""Whose KV a stored value is: a digest of everything that decides what a token's KV is.

A fingerprint covers one rank of one server: model, dtype, RoPE, tokenizer and row layout.
Tenant salt, LoRA and position layout are the *namespace*: many of them share a fingerprint,
and none is ever written in clear (`namespace_digest`).

What goes in, by name, so that a difference can be shown:

    config        the model's configuration as SGLang runs it, overrides included: RoPE, heads,
                  layers, norms; without the name of its folder and the library's version
    weights       of each weight file its name, its size and samples of its bytes, so that other
                  weights of the same shape differ; the index file in full
    source        model id and revision, where the files are not in a local folder
    load          quantization, load format, and the seed where weights are random
    tokenizer     the tokenizer's own files
    rows          dtype and shape of one token's row: layers, heads, channels, first layer
    rank          tensor and pipeline rank and size
    format        the version of the value format
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_patches.tiers.value import DIGEST_BYTES, FORMAT_VERSION, RowShape

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_INDEXES = ("*.index.json",)
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
# Of every weight file: its beginning, which names the tensors, and as many pieces over its
# length. A fine-tune changes nearly every byte, so a few are enough; reading all would take
# minutes of each start.
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 64 * 1024
_VOLATILE = ("_name_or_path", "transformers_version")


@dataclass(frozen=True)
class Fingerprint:
    """`digest` of `facts`; the facts are text and hashes, without any tenant's data."""

    facts: Mapping[str, str]
    rows: RowShape

    @property
    def digest(self) -> bytes:
        """(DIGEST_BYTES,) raw bytes."""
        return _digest(json.dumps(dict(self.facts), sort_keys=True).encode())

    @property
    def name(self) -> str:
        """The digest in hexadecimal: the name of the disk tier's folder."""
        return self.digest.hex()

    def namespace_digest(self, namespace: Hashable) -> bytes:
        """A namespace, such as `(salt, "tree")`, as DIGEST_BYTES bytes; equal only for equal ones.

        Made of strings, numbers, None and tuples of these.
        """
        return _digest(b"namespace", self.digest, repr(_plain(namespace)).encode())


def make_fingerprint(
    server_args: Any, model_config: Any, rows: RowShape, *, tp_rank: int = 0, pp_rank: int = 0
) -> Fingerprint:
    """The fingerprint of this rank.

    server_args   SGLang's ServerArgs
    model_config  SGLang's ModelConfig
    """
    model_path = str(model_config.model_path)
    folder = Path(model_path)
    is_local = folder.is_dir()
    is_random = str(server_args.load_format) in ("dummy", "LoadFormat.DUMMY")
    tokenizer = Path(str(server_args.tokenizer_path or model_path))
    facts = {
        "config": _hash_config(model_config.hf_config),
        "weights": _hash_weights(folder) if is_local else "",
        "source": "" if is_local else f"{model_path}@{server_args.revision or ''}",
        "load": json.dumps(
            [
                str(model_config.quantization or ""),
                str(server_args.load_format) if is_random else "",
                server_args.random_seed if is_random else 0,
                str(model_config.dtype),
            ]
        ),
        "tokenizer": _hash_files(tokenizer, _TOKENIZERS) if tokenizer.is_dir() else str(tokenizer),
        "rows": repr(rows),
        "rank": json.dumps([tp_rank, server_args.tp_size, pp_rank, server_args.pp_size]),
        "format": str(FORMAT_VERSION),
    }
    return Fingerprint(facts, rows)


def _hash_config(config: Any) -> str:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in _VOLATILE}
        return [strip(item) for item in value] if isinstance(value, list | tuple) else value

    return _digest(json.dumps(strip(config.to_dict()), sort_keys=True, default=str).encode()).hex()


def _hash_weights(folder: Path) -> str:
    parts = [_hash_files(folder, _INDEXES).encode()]
    for path in _find(folder, _WEIGHTS):
        size = path.stat().st_size
        parts.append(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for i in range(_NUM_SAMPLES):
                file.seek(i * max(size - _SAMPLE_BYTES, 0) // (_NUM_SAMPLES - 1))
                parts.append(file.read(_SAMPLE_BYTES))
    return _digest(*parts).hex()


def _hash_files(folder: Path, patterns: Iterable[str]) -> str:
    parts = [part for path in _find(folder, patterns) for part in (path.name.encode(), _read(path))]
    return _digest(*parts).hex()


def _find(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _digest(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        # With its length, so that moving a byte from one part to the next makes a difference.
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _plain(value: Hashable) -> Hashable:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    raise TypeError(f"a namespace holds {value!r}; use strings, numbers, None and tuples")
