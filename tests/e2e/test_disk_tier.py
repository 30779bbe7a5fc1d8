# SPDX-License-Identifier: Apache-2.0
"""KV on disk survives a restart, and a disk that fails costs speed, never an answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import on_disk
from tests.e2e.on_disk import MODEL, Asked, Start, disk_of, report_of, values_in
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

pytestmark = pytest.mark.sglang

asked, folder, start, stored = on_disk.asked, on_disk.folder, on_disk.start, on_disk.stored


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return {}


def test_after_a_restart_prompts_are_loaded_from_disk_and_not_computed(
    start: Start, folder: Path, asked: Asked, model_path: Callable[[str], Any]
) -> None:
    with start(folder) as served:
        other = report_of(served.ask(asked.salted, extra_key="b"))
        assert other["loaded"] == other["shared"] == 0  # nobody sees another's
        for prompt, salt in ((asked.tree, None), (asked.staggered, None), (asked.salted, "a")):
            report = report_of(served.ask(prompt, extra_key=salt))
            assert report["missed"] == 0
            assert report["loaded"] == report["context_tokens"]
        result = served.ask(asked.plain)
        assert result["meta_info"]["cached_tokens"] == len(asked.plain.task) - 1
        details = result["meta_info"]["cached_tokens_details"]
        assert details["storage"] == len(asked.plain.task) - 1

        subset = TreePrompt(asked.system, asked.trees[::-2], [8, 9])
        assert report_of(served.ask(subset))["missed"] == 0
        served.engine.flush()
        assert disk_of(served)["used_bytes"] == 0
        assert report_of(served.ask(asked.tree))["loaded"] == 0

        # New weights, here the same ones, which nobody can know: what is on disk is not theirs.
        served.engine.wait_until_stored()
        served.engine.load_weights(model_path(MODEL))
        report = report_of(served.ask(asked.tree))
        assert report["missed"] == report["context_tokens"]
        disk = disk_of(served)
        assert disk["is_off"]
        assert disk["cached_tokens"] == 0
        assert disk["values"] > 0  # for a server with the weights of before


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_tenant_finds_its_share_again_whatever_others_stored_since(
    start: Start, folder: Path, asked: Asked, share: float
) -> None:
    """Without a share the same is lost, so this can fail."""
    num_bytes = sum(file.stat().st_size for file in values_in(folder))
    rng = random.Random(3)
    settings = {"tenant_shares": json.dumps({"a": share}), "disk_gb": 1.5 * num_bytes / 1e9}
    with start(folder, **settings) as served:
        waiting = disk_of(served)["unclaimed_values"]
        assert waiting > 0
        for _ in range(30):
            served.ask(TreePrompt([], random_forest(rng, 6), random_tokens(rng, 4)))
            served.engine.wait_until_stored()
        disk = disk_of(served)
        assert disk["evicted_tokens"] > 0
        assert disk["unclaimed_values"] == (waiting if share else 0)
        report = report_of(served.ask(asked.salted, extra_key="a"))
        assert (report["missed"] == 0) == (share > 0)


def test_damaged_values_are_computed_again(start: Start, folder: Path, asked: Asked) -> None:
    values = values_in(folder)
    for i, path in enumerate(values):
        data = bytearray(path.read_bytes())
        if i % 3 == 0:
            data[len(data) // 2] ^= 1
        elif i % 3 == 1:
            del data[len(data) // 2 :]
        path.write_bytes(data)
        if i % 3 == 2:
            path.unlink()
    with start(folder) as served:
        asked.ask(served)  # judged
        disk = served.engine.wait_until_stored()
        assert disk["loaded_tokens"] == 0
        asked.ask(served)
    with start(folder) as served:  # and stored again, right this time
        assert report_of(served.ask(asked.tree))["missed"] == 0


def test_another_model_finds_nothing_of_this_one(start: Start, folder: Path, asked: Asked) -> None:
    with start(folder, model="llama_mild") as served:
        asked.ask(served)
        assert disk_of(served)["loaded_tokens"] == 0


@pytest.mark.parametrize("verbs", [["get"], ["set"]], ids=["reads hang", "writes hang"])
def test_a_storage_that_hangs_holds_nobody_up_for_long(
    start: Start, folder: Path, asked: Asked, verbs: list[str]
) -> None:
    config = {
        "module_path": "tests.sglang_patches.tiers.disk.backends",
        "class_name": "Hanging",
        "hangs": verbs,
        "depcache_folder": str(next(path for path in folder.iterdir() if path.is_dir())),
    }
    with start(folder, disk_backend="dynamic", disk_config=json.dumps(config)) as served:
        asked.ask(served)
        asked.ask(served)
        assert disk_of(served)["loaded_tokens"] == 0


def test_a_storage_that_raises_or_has_no_room_is_left_alone(
    start: Start, tmp_path: Path, asked: Asked
) -> None:
    config = {
        "module_path": "tests.sglang_patches.tiers.disk.backends",
        "class_name": "Hanging",
        "fails": ["set", "get"],
        "depcache_folder": str(tmp_path),
    }
    with start(tmp_path, disk_backend="dynamic", disk_config=json.dumps(config)) as served:
        asked.ask(served)
        asked.ask(served)
        disk = served.engine.wait_until_stored()
        assert disk["stored_tokens"] == 0
        assert disk["dropped"]["error"] > 0
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    with start(in_the_way, disk_gb=1e-5) as served:
        asked.ask(served)
        asked.ask(served)
        assert disk_of(served)["stored_tokens"] == 0
