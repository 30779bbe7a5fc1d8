# SPDX-License-Identifier: Apache-2.0
"""`python -m eval attention`: what a report holds with a GPU and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval import attention
from eval.__main__ import main
from eval.gpu import plans

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    file = tmp_path_factory.mktemp("report") / "attention.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CASES", ((2, 0), (3, 1)))
        assert main(["attention", "--repeats", "1", "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_every_plan_has_a_row_for_each_prompt_and_kind_of_kernels(report: dict) -> None:
    names = {"segments", "cascade", "custom_mask", "causal"}
    for kernels, more in (("torch", {"auto"}), ("flashinfer", {"blocks"})):
        rows = [row for row in report["rows"] if row["kernels"] == kernels]
        assert {(row["trees"], row["plan"]) for row in rows} == {
            (trees, plan) for trees in (2, 3) for plan in names | more
        }
        assert all(row["plan_ms_median"] > 0 and row["tokens"] > 0 for row in rows)


def test_fused_prompts_have_rows_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "fused.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "FUSED_CASES", ((200, 0.1, "first"), (300, 0.5, "random")))
        arguments = ["attention", "--fused", "--kernels", "torch", "--repeats", "1"]
        assert main([*arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {row["kernels"] for row in rows} == {"torch"}
    assert {(row["select"], row["plan"], row["new_tokens"]) for row in rows} == {
        (select, plan, num_new + attention.TASK_LEN)
        for select, num_new in (("first", 20), ("random", 150))
        for plan in (*attention.FUSED_PLANS, "causal")
    }


def test_without_a_gpu_no_kernel_of_it_was_timed(report: dict) -> None:
    times = {row["run_ms_median"] for row in report["rows"] if row["kernels"] == "flashinfer"}
    if plans.find_device() is None:
        assert times == {None} and report["moves"] == []
        assert report["device"] == report["machine"]["processor"]
    else:
        assert None not in times and report["moves"]
        assert report["device"] == plans.find_device()
