# SPDX-License-Identifier: Apache-2.0
"""Two ranks with a disk tier each: what one lacks is read by neither, and answers are the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import on_disk
from tests.e2e.on_disk import Asked, Start, disk_of, report_of, values_in
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

pytestmark = pytest.mark.sglang


asked, folder, start, stored = on_disk.asked, on_disk.folder, on_disk.start, on_disk.stored


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return {"tp_size": 2, "max_total_tokens": 800}


def ranks_in(folder: Path) -> list[Path]:
    """The folders of the ranks."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_after_a_restart_every_rank_loads_its_part(
    start: Start, folder: Path, asked: Asked
) -> None:
    first, second = ranks_in(folder)
    assert len(values_in(first)) == len(values_in(second)) > 0
    with start(folder) as served:
        for prompt, salt in ((asked.tree, None), (asked.staggered, None), (asked.salted, "a")):
            report = report_of(served.ask(prompt, extra_key=salt))
            assert report["missed"] == 0
            assert report["loaded"] == report["context_tokens"]
        result = served.ask(asked.plain)
        assert result["meta_info"]["cached_tokens_details"]["storage"] == len(asked.plain.task) - 1
        served.engine.flush()
        assert report_of(served.ask(asked.tree))["loaded"] == 0


@pytest.mark.parametrize("rank", range(2))
def test_what_one_rank_has_lost_is_computed_by_both(
    start: Start, folder: Path, asked: Asked, rank: int
) -> None:
    """Lost before the start, so that it is not found, and damaged, so that reading finds it."""
    values = values_in(ranks_in(folder)[rank])
    for i, path in enumerate(values):
        if i % 3 == 0:
            path.unlink()
        elif i % 3 == 1:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    with start(folder) as served:
        asked.ask(served)  # judged
        loaded = disk_of(served)["loaded_tokens"]
        served.engine.wait_until_stored()
        asked.ask(served)
    with start(folder) as served:  # and stored again, by both
        report = report_of(served.ask(asked.tree))
        assert report["missed"] == 0
        assert report["loaded"] == report["context_tokens"] > 0
    assert loaded < sum(each.num_context for each in (asked.tree, asked.staggered, asked.salted))


def test_a_small_host_and_pool_under_load_cost_no_answer(start: Start, tmp_path: Path) -> None:
    rng = random.Random(3)
    pool = [random_forest(rng, 1)[0] for _ in range(150)]
    system = random_tokens(rng, 10)
    with start(tmp_path, host_gb=0.0003, disk_gb=0.002) as served:
        num_loaded = 0
        for _ in range(30):
            prompts = [
                TreePrompt(system, rng.sample(pool, 4), random_tokens(rng, 5)) for _ in range(4)
            ]
            results = served.ask_together(prompts)
            num_loaded += sum(report_of(each)["loaded"] for each in results)
        disk = disk_of(served)
    assert num_loaded > 0
    assert disk["loaded_tokens"] > 0
    assert disk["deleted"] > 0  # not all of it fits
