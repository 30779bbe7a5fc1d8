# SPDX-License-Identifier: Apache-2.0
"""Which files decide what KV a model computes, and where they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# Indexes, quantization and everything else that a loader may look at; code of the model's own.
_SETTINGS = ("*.json", "**/*.py")
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
# Weights come over the network or from another process: no file here says which they are.
_ELSEWHERE = ("remote", "remote_instance", "rdma", "ipc_cache", "private")


def find_model(model_path: str, revision: str | None, download_dir: str | None) -> Path | None:
    """The folder (or the one file) of a model, also of a name on the hub that was downloaded."""
    place = Path(model_path)
    if place.exists():
        return place
    from huggingface_hub import snapshot_download

    for cache_dir in (download_dir, None):  # SGLang looks there in this order
        try:
            found = snapshot_download(
                model_path, revision=revision, cache_dir=cache_dir, local_files_only=True
            )
        except Exception:  # not a name, or not there: it has an error for each
            continue
        return Path(found)
    return None


def require_model(server_args: Any, model_config: Any) -> Path:
    """The same for a server; ConfigError where its weights are not in files here."""
    model_path, load_format = str(model_config.model_path), load_format_of(server_args)
    place = find_model(model_path, server_args.revision, server_args.download_dir)
    if place is None or load_format in _ELSEWHERE or not weight_files(place):
        raise ConfigError(
            "disk_gb needs weights in files that can be read here, to know whose KV is on disk, "
            f"and {model_path!r} with --load-format {load_format} has none: give a local folder, "
            "or leave disk_gb out"
        )
    return place


def load_format_of(server_args: Any) -> str:
    """The load format as on the command line, whatever SGLang has made of it."""
    load_format = server_args.load_format
    return str(getattr(load_format, "value", load_format))


def weight_files(place: Path) -> list[Path]:
    """The files of weights, in order of their names."""
    return _find(place, _WEIGHTS) if place.is_dir() else [place]


def setting_files(place: Path) -> list[Path]:
    """The other files of a model but its tokenizer's, in order of their names."""
    if not place.is_dir():
        return []
    return [path for path in _find(place, _SETTINGS) if path.name not in _TOKENIZERS]


def tokenizer_files(place: Path) -> list[Path]:
    """The tokenizer's files, in order of their names."""
    return _find(place, _TOKENIZERS)


def _find(folder: Path, patterns: Iterable[str]) -> list[Path]:
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file())
