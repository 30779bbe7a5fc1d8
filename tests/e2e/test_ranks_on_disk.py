# SPDX-License-Identifier: Apache-2.0
"""Two ranks with a disk tier each: what one lacks is read by neither, and answers are the same."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.e2e.test_disk_tier import Asked, disk_of, report_of, values_in
from tests.helpers.engine import start_engine
from tests.helpers.judge import OracleReport
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

MODEL = "llama_gqa"

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def start(
    model_path: Callable[[str], Any], oracle_of: Callable[[str], Any], oracle_report: OracleReport
) -> Callable[..., Any]:
    """Runs an engine of two ranks on a folder, and leaves what is there when it ends."""

    @contextmanager
    def run(folder: Path, **settings: str) -> Iterator[Served]:
        case = EngineCase("ranks-on-disk", MODEL, "auto", chunk=64)
        environment = {
            "DEPCACHE_HOST_GB": "0.02",
            "DEPCACHE_DISK_GB": "0.1",
            "DEPCACHE_DISK_FOLDER": str(folder),
            "DEPCACHE_WRITE_POLICY": "write_through",
            **settings,
        }
        with start_engine(
            model_path(MODEL),
            environment=environment,
            chunked_prefill_size=64,
            tp_size=2,
            max_total_tokens=800,
        ) as engine:
            yield Served(case, engine, oracle_of(MODEL), oracle_report)
            engine.check_conservation()

    return run


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def stored(
    start: Callable[..., Any], asked: Asked, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of an engine that was asked and has ended."""
    folder = tmp_path_factory.mktemp("disk")
    with start(folder) as served:
        asked.ask(served)
        disk = served.engine.wait_until_stored()
        assert disk["stored_tokens"] == disk["cached_tokens"] > 0
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    """A copy of it, to do harm to."""
    return shutil.copytree(stored, tmp_path / "copy")


def ranks_in(folder: Path) -> list[Path]:
    """The folders of the ranks."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_after_a_restart_every_rank_loads_its_part(
    start: Callable[..., Any], folder: Path, asked: Asked
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
    start: Callable[..., Any], folder: Path, asked: Asked, rank: int
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


def test_a_small_host_and_pool_under_load_cost_no_answer(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    rng = random.Random(3)
    pool = [random_forest(rng, 1)[0] for _ in range(150)]
    system = random_tokens(rng, 10)
    with start(tmp_path, DEPCACHE_HOST_GB="0.0003", DEPCACHE_DISK_GB="0.002") as served:
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
