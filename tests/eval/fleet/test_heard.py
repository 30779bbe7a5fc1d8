# SPDX-License-Identifier: Apache-2.0
"""What a picker hears of a real server, in how many seconds: what is counted, not how many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eval.fleet.heard import STILL_S, measure_heard
from eval.fleet.requests import make_requests
from eval.soak.server import Setup

pytestmark = pytest.mark.sglang


def test_evictions_of_a_full_server_are_heard(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("zmq")
    named = ("--served-model-name", "default")
    settings = {"host_gb": "0", "disk_gb": "0", "root_events": "tcp://127.0.0.1:*"}
    setup = Setup(str(model_path("llama_gqa")), 1500, settings, named)
    requests = make_requests(30, 2, num_entities=200, seed=4)
    found = measure_heard(setup, requests, tmp_path, num_timed=5)
    assert found["requests"] == 5
    assert found["evicted"] > 0 and found["gone"] > 0
    assert 0 <= found["late_s"]["median"] <= found["late_s"]["worst"] < STILL_S
