# SPDX-License-Identifier: Apache-2.0
"""What is said about GPUs is what eval/gpu/CHECKS.md says."""

from __future__ import annotations

import re
from pathlib import Path

from depcache import gpu_checks

CHECKS = Path(__file__).parents[2] / "eval" / "gpu" / "CHECKS.md"


def outcomes():
    """{number of the check: its last column}"""
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", CHECKS.read_text(), re.MULTILINE)
    return {int(number): outcome for number, outcome in rows}


def test_a_check_has_passed_here_only_if_it_has_there():
    assert sorted(outcomes()) == list(range(1, gpu_checks.NUM_CHECKS + 1))
    run = {number for number, outcome in outcomes().items() if outcome != "not run"}
    assert run >= gpu_checks.PASSED


def test_the_sentence_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(gpu_checks, "PASSED", frozenset())
    assert "None of" in str(gpu_checks.why_unchecked())
    monkeypatch.setattr(gpu_checks, "PASSED", frozenset({1, 2, 4}))
    assert "3, 5, 6, 7, 8 of" in str(gpu_checks.why_unchecked())
    monkeypatch.setattr(gpu_checks, "PASSED", frozenset(range(1, gpu_checks.NUM_CHECKS + 1)))
    assert gpu_checks.why_unchecked() is None
