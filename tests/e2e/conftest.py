# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on a real engine: the engine of a module, oracles, worst errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.served import EngineCase, Served, serve
from tests.helpers.judge import OracleReport

if TYPE_CHECKING:
    from tests.e2e.adapted import Adapters
    from tests.helpers.fused_oracle import FusedOracle

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


@pytest.fixture
def oracle(case: EngineCase, oracle_of: Callable[[str], Any]) -> FusedOracle:
    """The oracle of fused requests to the module's engine."""
    from tests.helpers.fused_oracle import FusedOracle

    return FusedOracle(oracle_of(case.model))


@pytest.fixture(scope="session")
def oracle_report() -> Iterator[OracleReport]:
    """Collects errors; written to the file that DEPCACHE_ORACLE_REPORT names, if any."""
    report = OracleReport()
    yield report
    file = os.environ.get(REPORT_VARIABLE)
    if file and report.entries:
        report.write(Path(file))


@pytest.fixture(scope="module")
def running(
    case: EngineCase,
    model_path: Callable[[str], Path],
    oracle_of: Callable[[str], Any],
    oracle_report: OracleReport,
) -> Iterator[Served]:
    """The engine of `case`, a fixture of the module, which may have several."""
    with serve(case, model_path, oracle_of, oracle_report) as served:
        yield served


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The module's engine with nothing in its cache; behind the test no slot may be missing."""
    running.engine.flush()
    yield running
    running.engine.check_conservation()


@pytest.fixture(scope="module")
def adapters(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Adapters:
    """Two LoRA adapters of one model, and an oracle for each."""
    from tests.e2e.adapted import MODEL, Adapters

    return Adapters(model_path(MODEL), tmp_path_factory.mktemp("adapters"))
