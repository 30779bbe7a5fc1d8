# SPDX-License-Identifier: Apache-2.0
"""Whose KV a stored value is: a digest of everything that decides what a token's KV is.

A fingerprint covers one rank of one server: model, dtype, RoPE, tokenizer and row layout.
Tenant salt and position layout are the *namespace*: many of them share a fingerprint,
and none is ever written in clear (`namespace_digest`).

What goes in, by name, so that a difference can be shown:

    config        the model's configuration as SGLang runs it, overrides included: RoPE, heads,
                  layers, norms; without the name of its folder and the library's version
    weights       of each weight file its name and a digest of all its bytes: a fine-tune, and
                  even a repair, may change few of them. Not which of the tensors matter
    settings      the model's other files: index, quantization, code of its own
    load          the arguments that say how weights and KV are represented, the contents of
                  files they name, and the seed where weights are random
    engine        SGLang's version, which is the code of all other models, and a package that
                  SGLANG_EXTERNAL_MODEL_PACKAGE names (not what is in it)
    positions     whether KV was given the rotation of the position it is used at
    tokenizer     the tokenizer's own files
    rows          dtype and shape of one token's row: layers, heads, channels, first layer
    rank          tensor and pipeline rank and size
    format        the version of the value format

LoRA adapters are not in it: the namespace names each by a digest of its weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sglang_patches.tiers.disk.file_hashes import FileHashes
from sglang_patches.tiers.disk.model_files import (
    load_format_of,
    require_model,
    setting_files,
    tokenizer_files,
    weight_files,
)
from sglang_patches.tiers.disk.value import DIGEST_BYTES, FORMAT_VERSION
from sglang_patches.tiers.rows import RowShape
from sglang_patches.version import installed_version

LOADING = (
    "dtype",
    "enable_w4a4_mxfp4_megamoe",
    "json_model_override_args",
    "kv_cache_dtype",
    "load_format",
    "model_config_parser",
    "model_impl",
    "model_loader_extra_config",
    "modelopt_quant",
    "quantization",
    "quantize_and_serve",
    "torchao_config",
    "trust_remote_code",
)
"""Arguments that change what weights become. A release need not have all of them."""

NAMED_FILES = ("modelopt_checkpoint_restore_path", "quantization_param_path", "rl_quant_profile")
_VOLATILE = ("_name_or_path", "transformers_version")


@dataclass(frozen=True)
class Fingerprint:
    """`digest` of `facts`; the facts are text and hashes, without any tenant's data."""

    facts: Mapping[str, str]
    rows: RowShape

    @cached_property
    def digest(self) -> bytes:
        """(DIGEST_BYTES,) raw bytes."""
        return _digest(json.dumps(dict(self.facts), sort_keys=True).encode())

    @property
    def name(self) -> str:
        """The digest in hexadecimal: the name of the disk tier's folder."""
        return self.digest.hex()

    def namespace_digest(self, namespace: Hashable, behind: bytes = b"") -> bytes:
        """The parts of a namespace, such as `(salt, "tree")`, as DIGEST_BYTES bytes, equal only
        for equal ones, and the same on every rank.

        namespace  made of strings, numbers, None and tuples of these
        behind     as for `Root`; without it the digest is that of the first release
        """
        parts = (b"namespace", self._first_digest, repr(_plain(namespace)).encode())
        return _digest(*parts, behind) if behind else _digest(*parts)

    def tenant_digest(self, tenant: str | None) -> bytes:
        """A tenant as DIGEST_BYTES bytes, whatever its layouts, adapters and joins."""
        return _digest(b"tenant", self._first_digest, repr(tenant).encode())

    @cached_property
    def _first_digest(self) -> bytes:
        """The digest that the first rank has: ranks compare what they know of namespaces."""
        facts = dict(self.facts)
        if "rank" in facts:
            facts["rank"] = json.dumps([0, *json.loads(facts["rank"])[1:]])
        return replace(self, facts=facts).digest


def make_fingerprint(
    server_args: Any,
    model_config: Any,
    rows: RowShape,
    *,
    tp_rank: int = 0,
    pp_rank: int = 0,
    reencodes: bool = True,
    hashes: FileHashes | None = None,
) -> Fingerprint:
    """The fingerprint of this rank.

    Raises ConfigError where weights are in no file here, OSError where one cannot be read.

    server_args   SGLang's ServerArgs
    model_config  SGLang's ModelConfig
    reencodes     the setting `reencode_positions`
    hashes        remembers digests of weight files; reading 16 GB takes seconds
    """
    hashes = FileHashes() if hashes is None else hashes
    is_random = load_format_of(server_args) == "dummy"
    place = None if is_random else require_model(server_args, model_config)
    tokenizer = Path(str(server_args.tokenizer_path or model_config.model_path))
    facts = {
        "config": _hash_config(model_config.hf_config),
        "weights": "" if place is None else weights_digest(place, hashes),
        "settings": "" if place is None else _hash_files(setting_files(place), place, hashes),
        "load": _hash_loading(server_args, model_config, hashes, is_random=is_random),
        "engine": f"{installed_version()} {os.environ.get('SGLANG_EXTERNAL_MODEL_PACKAGE', '')}",
        "positions": str(reencodes),
        "tokenizer": _hash_files(tokenizer_files(tokenizer), tokenizer, hashes)
        if tokenizer.is_dir()
        else str(tokenizer),
        "rows": repr(rows),
        "rank": json.dumps([tp_rank, server_args.tp_size, pp_rank, server_args.pp_size]),
        "format": str(FORMAT_VERSION),
    }
    return Fingerprint(facts, rows)


def weights_digest(place: Path, hashes: FileHashes | None = None) -> str:
    """A digest of the weight files of a model, and of their names, in hexadecimal.

    place  its folder, or its one file

    Raises OSError where one cannot be read.
    """
    return _hash_files(weight_files(place), place, FileHashes() if hashes is None else hashes)


def _hash_config(config: Any) -> str:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in _VOLATILE}
        return [strip(item) for item in value] if isinstance(value, list | tuple) else value

    return _digest(json.dumps(strip(config.to_dict()), sort_keys=True, default=str).encode()).hex()


def _hash_loading(
    server_args: Any, model_config: Any, hashes: FileHashes, *, is_random: bool
) -> str:
    named = [Path(path) for name in NAMED_FILES if (path := getattr(server_args, name, None))]
    says = {name: getattr(server_args, name) for name in LOADING if hasattr(server_args, name)}
    says |= {"load_format": load_format_of(server_args), "quantization": model_config.quantization}
    says |= {"dtype": model_config.dtype, "seed": server_args.random_seed if is_random else 0}
    files = [
        file
        for path in named
        for file in (weight_files(path) + setting_files(path) if path.exists() else [])
    ]
    return _digest(
        json.dumps(says, sort_keys=True, default=str).encode(),
        *(str(path).encode() for path in named),
        *hashes.digests(files),
    ).hex()


def _hash_files(files: Iterable[Path], place: Path, hashes: FileHashes) -> str:
    folder = place if place.is_dir() else place.parent
    files = list(files)
    names = [str(path.relative_to(folder)).encode() for path in files]
    return _digest(*names, *hashes.digests(files)).hex()


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
