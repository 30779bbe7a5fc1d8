# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on a real engine: oracles by model, and the report of the worst errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.judge import OracleReport

REPORT_VARIABLE = "DEPCACHE_ORACLE_REPORT"


@pytest.fixture(scope="session")
def oracle_of(model_path: Callable[[str], Path]) -> Callable[[str], Any]:
    """`oracle_of("llama_gqa")` is the oracle of that model; loaded once per session."""
    from tests.helpers.oracle import Oracle

    loaded: dict[str, Any] = {}

    def oracle(name: str) -> Any:
        if name not in loaded:
            loaded[name] = Oracle(model_path(name))
        return loaded[name]

    return oracle


@pytest.fixture(scope="session")
def oracle_report() -> Iterator[OracleReport]:
    """Collects errors; written to the file that DEPCACHE_ORACLE_REPORT names, if any."""
    report = OracleReport()
    yield report
    file = os.environ.get(REPORT_VARIABLE)
    if file and report.entries:
        report.write(Path(file))
