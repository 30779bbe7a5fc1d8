# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters and a disk tier (P4): after a restart KV is found again by the weights alone."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.adapted import Adapters, prompts_of, start_adapted
from tests.helpers.adapters import replace_adapter, scale_adapter
from tests.helpers.judge import OracleReport

pytestmark = pytest.mark.sglang
pytest.importorskip("peft", reason="needs the extra `finetune`")


def test_on_disk_an_adapter_is_found_again_by_its_weights(
    adapters: Adapters, oracle_report: OracleReport, tmp_path: Path
) -> None:
    environment = {
        "DEPCACHE_HOST_GB": "0.02",
        "DEPCACHE_DISK_GB": "0.1",
        "DEPCACHE_DISK_FOLDER": str(tmp_path / "disk"),
        "DEPCACHE_WRITE_POLICY": "write_through",
        "DEPCACHE_LOAD_POLICY": "always",
    }
    start = partial(start_adapted, adapters, report=oracle_report, **environment)
    at = tmp_path / "adapter"
    at.mkdir()
    replace_adapter(at, adapters.folders["A"])
    prompt = prompts_of(random.Random(6))["tree"]
    with start(paths={"A": at}) as server:
        server.ask(prompt, "A")
        server.engine.wait_until_stored()
    with start(paths={"renamed": at}) as server:
        report = server.ask(prompt, "renamed", like="A")["meta_info"]["depcache"]
        assert report["loaded"] == report["context_tokens"]
        assert server.ask(prompt, None)["meta_info"]["depcache"]["loaded"] == 0

    replace_adapter(at, adapters.folders["B"])
    with start(paths={"A": at}) as server:
        report = server.ask(prompt, "A", like="B")["meta_info"]["depcache"]
        assert report["missed"] == report["context_tokens"]

    replace_adapter(at, adapters.folders["A"])
    scale_adapter(at, 3)  # the same weights, three times as strong
    with start(paths={"A": at}) as server:
        report = server.engine.ask(prompt, lora_path="A")["meta_info"]["depcache"]
        assert report["missed"] == report["context_tokens"]
