# SPDX-License-Identifier: Apache-2.0
"""`python -m eval costs` on a small tree: the figures are there. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

from eval.__main__ import main


def test_the_report_has_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["costs", "--json", str(out), "--nodes", "1500", "--queue", "8", "--repeats", "3"]
    assert main([*arguments, "--policy", "lru"]) == 0
    figures = json.loads(out.read_text())
    assert figures["match_plan_ms_median"] > 0
    assert figures["select_ms_median"] > 0 and figures["fused_match_plan_ms_median"] > 0
    assert {"evict_10k_ms", "lookahead_256_ms", "bytes_per_node"} <= set(figures)
    assert figures["bytes_per_node"] > 4 * figures["tokens_per_node"]
