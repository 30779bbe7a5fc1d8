# SPDX-License-Identifier: Apache-2.0
"""A fingerprint is the same for the same model and differs with everything that changes KV."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import ServerArgs

from sglang_patches.tiers.fingerprint import make_fingerprint
from sglang_patches.tiers.host_pool import row_shape
from tests.sglang_patches.tiers.make import make_pool

pytestmark = pytest.mark.sglang


@pytest.fixture
def model(model_path, tmp_path):
    """A copy of a model's folder that a test may change."""
    return shutil.copytree(model_path("llama_gqa"), tmp_path / "model")


def fingerprint_of(folder, rows=None, *, tp_rank=0, **arguments):
    server_args = ServerArgs(model_path=str(folder), device="cpu", **arguments)
    config = ModelConfig.from_server_args(server_args)
    return make_fingerprint(server_args, config, rows or row_shape(make_pool()), tp_rank=tp_rank)


def test_it_is_the_same_every_time_and_wherever_the_model_lies(model, tmp_path):
    first = fingerprint_of(model)
    moved = shutil.copytree(model, tmp_path / "elsewhere")
    assert first == fingerprint_of(model) == fingerprint_of(moved)
    assert len(first.name) == 32


def test_weights_of_the_same_shape_make_a_difference(model):
    before = fingerprint_of(model)
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    # A fine-tune: everything behind the names of the tensors.
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = bytes(byte ^ 1 for byte in data[start:])
    file.write_bytes(data)
    after = fingerprint_of(model)
    assert before.digest != after.digest
    assert [key for key in before.facts if before.facts[key] != after.facts[key]] == ["weights"]


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_parameters"])
def test_the_configuration_makes_a_difference(model, tmp_path, key):
    before = fingerprint_of(model)
    # Elsewhere, because SGLang reads a configuration once per process and path.
    other = shutil.copytree(model, tmp_path / "other")
    path = other / "config.json"
    config = json.loads(path.read_text())
    config[key] = {"rope_type": "default", "rope_theta": 777.0} if key[1] == "o" else 0.5
    path.write_text(json.dumps(config))
    assert fingerprint_of(other).digest != before.digest


def test_overrides_of_the_configuration_make_a_difference(model):
    override = fingerprint_of(model, json_model_override_args='{"rms_norm_eps": 0.5}')
    assert override.digest != fingerprint_of(model).digest


def test_dtype_rank_and_tokenizer_make_a_difference(model):
    rows = row_shape(make_pool())
    marks = [
        fingerprint_of(model),
        fingerprint_of(model, row_shape(make_pool(torch.float16))),
        fingerprint_of(model, replace(rows, start_layer=2)),
        fingerprint_of(model, tp_rank=1),
        fingerprint_of(model, dtype="bfloat16"),
        fingerprint_of(model, load_format="dummy"),
        fingerprint_of(model, load_format="dummy", random_seed=7),
    ]
    (model / "tokenizer.json").write_text('{"other": true}')
    marks.append(fingerprint_of(model))
    assert len({mark.digest for mark in marks}) == len(marks)


def test_namespaces_are_equal_only_to_themselves(model):
    mark = fingerprint_of(model)
    spaces = [(None, "tree"), ("None", "tree"), ("", "tree"), ("a", "tree"), ("a", "sequential")]
    spaces += [("a,tree",), (("a",), "tree"), (1, "tree"), ("1", "tree"), ("atree",)]
    digests = [mark.namespace_digest(space) for space in spaces]
    assert len(set(digests)) == len(spaces)
    assert digests == [mark.namespace_digest(space) for space in spaces]
    with pytest.raises(TypeError, match="namespace"):
        mark.namespace_digest(frozenset({"a"}))


def test_no_salt_is_readable(model):
    mark = fingerprint_of(model)
    assert b"salt" not in mark.namespace_digest(("salt", "tree"))
    assert len(mark.namespace_digest(("salt" * 100, "tree"))) == 16
