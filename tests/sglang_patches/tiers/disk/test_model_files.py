# SPDX-License-Identifier: Apache-2.0
"""The files that decide what KV a model computes: weights and settings apart from the tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depcache.errors import ConfigError
from sglang_patches.tiers.disk.model_files import (
    load_format_of,
    require_model,
    setting_files,
    tokenizer_files,
    weight_files,
)

pytestmark = pytest.mark.sglang

WEIGHTS = ["model-00001.safetensors", "model-00002.safetensors"]
SETTINGS = ["config.json", "custom/modeling.py", "model.safetensors.index.json"]
TOKENIZER = ["merges.txt", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in [*WEIGHTS, *SETTINGS, *TOKENIZER, "README.md"]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "a folder.json").mkdir()
    return tmp_path


def names(folder: Path, files: list[Path]) -> list[str]:
    return [str(file.relative_to(folder)) for file in files]


def test_each_file_is_of_one_kind_in_order_and_the_rest_decides_nothing(folder: Path) -> None:
    assert names(folder, weight_files(folder)) == WEIGHTS
    assert names(folder, setting_files(folder)) == SETTINGS
    assert names(folder, tokenizer_files(folder)) == TOKENIZER


def test_a_model_of_one_file_has_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert (weight_files(file), setting_files(file)) == ([file], [])


def server(load_format: Any = "auto") -> Any:
    return SimpleNamespace(load_format=load_format, revision=None, download_dir=None)


def test_a_load_format_is_a_word_whatever_sglang_made_of_it() -> None:
    assert load_format_of(server("dummy")) == "dummy"
    assert load_format_of(server(SimpleNamespace(value="safetensors"))) == "safetensors"


def test_weights_that_are_in_no_file_here_are_refused(folder: Path, tmp_path: Path) -> None:
    model: Any = SimpleNamespace(model_path=str(folder))
    assert require_model(server(), model) == folder
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [(server("remote"), str(folder)), (server(), str(empty)), (server(), "no/such-model")]
    for args, path in cases:
        with pytest.raises(ConfigError, match=r"disk_gb needs weights in files .* leave disk_gb"):
            require_model(args, SimpleNamespace(model_path=path))
