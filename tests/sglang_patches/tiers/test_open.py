# SPDX-License-Identifier: Apache-2.0
"""The disk tier that the settings ask for, or a reason why there is none."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import ServerArgs

from depcache.config import Config
from sglang_patches.tiers.disk import file_hashes
from sglang_patches.tiers.open import open_disk
from tests.helpers.file_times import wait_until_older
from tests.sglang_patches.tiers.disk.make import make_pool

pytestmark = pytest.mark.sglang


@pytest.fixture
def opened(model_path, tmp_path):
    """`opened(**settings)` opens a tier for a copy of a model, as a server does."""
    folder = shutil.copytree(model_path("llama_gqa"), tmp_path / "model")
    server_args = ServerArgs(model_path=str(folder), device="cpu")
    context = SimpleNamespace(
        server_args=server_args,
        model_config=ModelConfig.from_server_args(server_args),
        params=SimpleNamespace(pp_rank=0, tp_cache_group=None),
        tp_rank=0,
        tp_size=1,
    )
    tiers = []

    def start(**settings):
        config = Config(disk_gb=0.001, disk_folder=str(tmp_path / "disk"), **settings)
        tiers.append(open_disk(context, make_pool(), config))
        return tiers[-1]

    yield start
    for tier in tiers:
        if tier is not None:
            tier.close()


def test_weights_are_read_at_the_first_start_only(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(file_hashes, "RACY_NS", 0)
    wait_until_older((tmp_path / "model").iterdir())
    first = opened().fingerprint
    assert (tmp_path / "disk" / "hashes.json").exists()

    def fail(piece):
        raise AssertionError(f"{piece} was read again")

    monkeypatch.setattr(file_hashes, "_hash_piece", fail)
    assert opened().fingerprint == first


def test_kv_without_reencoding_is_not_kv_with_it(opened):
    assert opened().folder != opened(reencode_positions=False).folder


def test_weights_that_cannot_be_read_leave_the_server_without_the_tier(opened, monkeypatch, caplog):
    real = os.open

    def fail(path, *more, **named):
        if str(path).endswith(".safetensors"):
            raise OSError(5, "Input/output error", str(path))
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", fail)
    assert opened() is None
    assert "the server runs without it" in caplog.text
