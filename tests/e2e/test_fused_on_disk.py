# SPDX-License-Identifier: Apache-2.0
"""Fused answers do not depend on which tier has the rows, nor on a disk that fails."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import on_disk
from tests.e2e.on_disk import MODEL, Start, disk_of, report_of, values_in
from tests.e2e.served import Served
from tests.e2e.test_fused import context, error_of
from tests.helpers.fused_oracle import FusedOracle, FusedPrompt, fuse
from tests.helpers.oracle import Oracle
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

pytestmark = pytest.mark.sglang

start = on_disk.start

SAME_LOGPROB = 1e-5
NUM_NEW = 12


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return {"max_total_tokens": 420}


class Fused:
    """A prompt, fused in several ways, and what an engine answered to each at first."""

    def __init__(self) -> None:
        rng = random.Random(41)
        self.prompt = TreePrompt(
            random_tokens(rng, 5), random_forest(rng, 5), random_tokens(rng, 5)
        )
        self.chosen = sorted(rng.sample(context(self.prompt), 9))
        self.asked: dict[str, FusedPrompt] = {
            "given": fuse(self.prompt, self.chosen),
            **{
                select: fuse(self.prompt, select=select, recompute=0.3, seed=seed)
                for select, seed in (("first", 0), ("random", 5), ("mixed", 0))
            },
        }
        self.first: dict[str, list[tuple[float, int]]] = {}

    def ask(self, served: Served, oracle: FusedOracle) -> dict[str, dict[str, Any]]:
        """Asks all, compares with the first answers, and returns the reports."""
        reports: dict[str, dict[str, Any]] = {}
        for name, prompt in self.asked.items():
            result = served.engine.ask(prompt, NUM_NEW)
            reports[name] = report_of(result)
            assert (reports[name]["see"], reports[name]["missed"]) == ("fused", 0)
            if name == "given":
                assert error_of(oracle, self.prompt, self.chosen, result) < ORACLE_LOGPROB
            found = [(row[0], row[1]) for row in result["meta_info"]["output_token_logprobs"]]
            first = self.first.setdefault(name, found)
            assert [token for _, token in found] == [token for _, token in first]
            assert max(abs(a - b) for (a, _), (b, _) in zip(found, first, strict=True)) < (
                SAME_LOGPROB
            )
        return reports


@pytest.fixture(scope="module")
def oracle(oracle_of: Callable[[str], Oracle]) -> FusedOracle:
    return FusedOracle(oracle_of(MODEL))


@pytest.fixture(scope="module")
def fused() -> Fused:
    return Fused()


@pytest.fixture(scope="module")
def stored(
    start: Start, fused: Fused, oracle: FusedOracle, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of an engine that was asked, cold, warm and from host memory, and has ended."""
    folder = tmp_path_factory.mktemp("disk")
    rng = random.Random(43)
    with start(folder) as served:
        fused.ask(served, oracle)
        reports = fused.ask(served, oracle)
        assert reports["given"]["settled"] == 0
        assert len({tuple(answer) for answer in fused.first.values()}) == len(fused.asked)
        served.engine.wait_until_stored()
        before = served.engine.cache_state()["host"]["loaded_tokens"]
        for _ in range(3):
            served.engine.ask(plain(random_tokens(rng, 390)), 1)
        fused.ask(served, oracle)
        assert served.engine.cache_state()["host"]["loaded_tokens"] > before
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stored, tmp_path / "copy")


def test_after_a_restart_the_tokens_are_the_same(
    start: Start, folder: Path, fused: Fused, oracle: FusedOracle
) -> None:
    with start(folder) as served:
        fused.ask(served, oracle)
        assert disk_of(served)["loaded_tokens"] > 0


@pytest.mark.parametrize("harm", ["flipped byte", "cut off", "gone"])
def test_a_damaged_value_changes_no_token(
    start: Start, folder: Path, fused: Fused, oracle: FusedOracle, harm: str
) -> None:
    for path in values_in(folder):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(data if harm == "flipped byte" else data[: len(data) // 2])
    with start(folder) as served:
        late = served.engine.ask(fuse(fused.prompt, fused.chosen, pin=False), NUM_NEW)
        flat = report_of(late)["see"] == "flat"
        chosen = list(context(fused.prompt)) if flat else fused.chosen
        assert error_of(oracle, fused.prompt, chosen, late) < ORACLE_LOGPROB
        assert not flat or report_of(late)["fallback_reason"]
        reports = fused.ask(served, oracle)
        assert reports["given"]["settled"] > 0 or not flat
        assert disk_of(served)["loaded_tokens"] == 0


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_disk_that_hangs_holds_no_fused_request_up_for_long(
    start: Start, folder: Path, fused: Fused, oracle: FusedOracle, is_pinned: bool
) -> None:
    config = {
        "module_path": "tests.sglang_patches.tiers.disk.backends",
        "class_name": "Hanging",
        "hangs": ["get"],
        "depcache_folder": str(next(path for path in folder.iterdir() if path.is_dir())),
    }
    with start(folder, disk_backend="dynamic", disk_config=json.dumps(config)) as served:
        result = served.engine.ask(fuse(fused.prompt, fused.chosen, pin=is_pinned), NUM_NEW)
        report = report_of(result)
        assert not is_pinned or report["see"] == "fused"
        flat = report["see"] == "flat"
        chosen = list(context(fused.prompt)) if flat else fused.chosen
        assert error_of(oracle, fused.prompt, chosen, result) < ORACLE_LOGPROB
        assert not flat or report["fallback_reason"]
        assert disk_of(served)["loaded_tokens"] == 0
