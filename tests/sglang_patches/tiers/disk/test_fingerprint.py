# SPDX-License-Identifier: Apache-2.0
"""A fingerprint is the same for the same model and differs with everything that changes KV."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import ServerArgs

from depcache.errors import ConfigError
from sglang_patches.tiers.disk import fingerprint
from sglang_patches.tiers.disk.fingerprint import make_fingerprint
from sglang_patches.tiers.disk.model_files import find_model
from sglang_patches.tiers.host.pool import row_shape
from tests.helpers.arguments import change, server_arguments
from tests.sglang_patches.tiers.disk.make import make_pool

pytestmark = pytest.mark.sglang


@pytest.fixture
def model(model_path, tmp_path):
    """A copy of a model's folder that a test may change."""
    return shutil.copytree(model_path("llama_gqa"), tmp_path / "model")


def fingerprint_of(folder, rows=None, *, tp_rank=0, reencodes=True, **arguments):
    server_args = ServerArgs(model_path=str(folder), device="cpu", **arguments)
    config = ModelConfig.from_server_args(server_args)
    return make_fingerprint(
        server_args,
        config,
        rows or row_shape(make_pool()),
        tp_rank=tp_rank,
        reencodes=reencodes,
    )


def differences(first, second):
    return [key for key in first.facts if first.facts[key] != second.facts[key]]


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
    assert differences(before, after) == ["weights"]


def test_a_single_byte_of_the_weights_makes_a_difference(model):
    """16 samples of 64 KiB a file once missed 3.4 million flipped signs: 12 of 12 answers wrong."""
    (file,) = model.glob("*.safetensors")
    good = file.read_bytes()
    good += bytes(4 << 20)
    file.write_bytes(good)
    before = fingerprint_of(model)
    position = len(good) * 13 // 30  # between two samples
    file.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
    assert differences(before, fingerprint_of(model)) == ["weights"]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("modeling_own.py", "settings"),
        ("parts/rotary.py", "settings"),
        ("quantize_config.json", "settings"),
        ("quant_model_description.json", "settings"),
        ("model.safetensors.index.json", "settings"),
        ("consolidated.safetensors", "weights"),
        ("model-00002.bin", "weights"),
    ],
)
def test_other_files_that_a_loader_reads_make_a_difference(model, name, fact):
    file = model / name
    file.parent.mkdir(exist_ok=True)
    marks = [fingerprint_of(model)]
    for content in ("{}", '{"a": 1}'):
        file.write_text(content)
        marks.append(fingerprint_of(model))
    assert len({mark.digest for mark in marks}) == 3
    assert differences(*marks[1:]) == [fact]


def test_odd_things_in_the_folder_of_a_model_are_no_files_of_it(model):
    before = fingerprint_of(model)
    (model / "checkpoint.bin").mkdir()
    os.mkfifo(model / "notes.json")
    (model / "gone.safetensors").symlink_to(model / "nowhere")
    assert fingerprint_of(model) == before


def test_a_snapshot_of_links_is_the_model_behind_them(model, tmp_path):
    """The layout of HuggingFace's cache."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(blobs / str(number))
    assert fingerprint_of(snapshot) == fingerprint_of(model)
    (link,) = snapshot.glob("*.safetensors")
    blob = link.resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert differences(fingerprint_of(snapshot), fingerprint_of(model)) == ["weights"]


def test_a_name_on_the_hub_is_the_snapshot_that_was_downloaded(model, tmp_path, monkeypatch):
    from huggingface_hub import constants

    commit = "0" * 40
    repository = tmp_path / "hub" / "models--some--model"
    shutil.copytree(model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_model("some/model", None, None) == repository / "snapshots" / commit
    assert find_model("some/model", None, str(tmp_path / "elsewhere")) is not None
    assert find_model("some/other", None, None) is None


@pytest.mark.parametrize("load_format", ["remote_instance", "ipc_cache"])
def test_weights_that_nobody_can_read_here_are_refused(model, load_format):
    server_args = ServerArgs(model_path=str(model), device="cpu")
    config = ModelConfig.from_server_args(server_args)
    change(server_args, load_format=load_format)
    with pytest.raises(ConfigError, match=f"{load_format}.*leave disk_gb out"):
        make_fingerprint(server_args, config, row_shape(make_pool()))
    change(server_args, load_format="auto")
    config.model_path = "s3://bucket/model"
    with pytest.raises(ConfigError, match=r"s3://bucket/model.*leave disk_gb out"):
        make_fingerprint(server_args, config, row_shape(make_pool()))


def test_a_folder_without_weights_that_are_known_is_refused(model):
    """Else all models in a format of the future would have the same."""
    (file,) = model.glob("*.safetensors")
    file.rename(file.with_suffix(".next"))
    with pytest.raises(ConfigError, match="leave disk_gb out"):
        fingerprint_of(model)


def test_every_argument_that_is_asked_for_exists_in_this_sglang():
    of_one_release = {"torchao_config", "enable_w4a4_mxfp4_megamoe"}
    asked = {*fingerprint.LOADING, *fingerprint.NAMED_FILES}
    assert asked - server_arguments() < of_one_release


def test_a_file_that_an_argument_names_makes_a_difference(model, tmp_path):
    scales = tmp_path / "scales.json"
    marks = [fingerprint_of(model)]
    for content in ("{}", '{"k": 2}'):
        scales.write_text(content)
        marks.append(fingerprint_of(model, quantization_param_path=str(scales)))
    assert len({mark.digest for mark in marks}) == 3


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
        fingerprint_of(model, kv_cache_dtype="bfloat16"),
        fingerprint_of(model, reencodes=False),
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
