# SPDX-License-Identifier: Apache-2.0
"""Wire, plans, counters and metrics are what they were before the house was rebuilt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.golden import REQUESTS, record_metrics, record_requests, to_text

pytestmark = pytest.mark.sglang

FILE = Path(__file__).with_name("golden.json")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def requests() -> dict[str, Any]:
    return json.loads(json.dumps(record_requests()))


@pytest.mark.parametrize("name", [request[0] for request in REQUESTS])
def test_a_request_is_read_planned_and_cached_as_before(
    name: str, golden: dict[str, Any], requests: dict[str, Any]
) -> None:
    assert requests[name] == golden["requests"][name]


def test_the_tiers_hold_the_same(golden: dict[str, Any], requests: dict[str, Any]) -> None:
    assert requests.keys() == golden["requests"].keys()
    for name in ("evicted", "tree", "host"):
        assert requests[name] == golden["requests"][name]


def test_the_requests_reach_every_kind_of_row(golden: dict[str, Any]) -> None:
    reports = [golden["requests"][request[0]]["report"] for request in REQUESTS]
    for name in ("shared", "shifted", "loaded", "missed", "plain"):
        assert any(report[name] for report in reports), name


def test_metrics_keep_names_and_labels(golden: dict[str, Any]) -> None:
    assert json.loads(json.dumps(record_metrics())) == golden["metrics"]


def test_the_file_is_written_as_it_would_be_anew(golden: dict[str, Any]) -> None:
    assert FILE.read_text(encoding="utf-8") == to_text(golden)
