# SPDX-License-Identifier: Apache-2.0
"""A prompt and a report to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.soak.judge import Judge
from eval.soak.ledger import Ledger
from eval.soak.prompts import Prompt
from eval.soak.report import make_report
from eval.soak.stalls import Stall


def prompt_of(kind: str, system_len: int = 4) -> Prompt:
    structure = {
        "depcache_version": 1,
        "depcache_layout": kind,
        "depcache_system_len": system_len,
        "depcache_segment_lens": [3],
        "depcache_segment_parents": [-1],
    }
    return Prompt(kind, list(range(100, 110)), None if kind == "plain" else structure)


def report_of(tmp_path: Path, ledger: Ledger | None = None, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "minutes": 1.0,
        "seed": 0,
        "leaked": 0,
        "growth": {"rss_growth_mb_per_hour": 1.0, "fd_growth": 0, "seconds_watched": 500.0},
        "ttft": {"p99_ttft_ms_start": 3.0, "p99_ttft_ms_end": 3.0},
        "kills": [{"how": "SIGKILL", "loaded_after": 7}],
        "restart_hits": 7,
        "stalls": [Stall("x", 200, 1.0, {"a stream": 30.0}, {}, 1)],
        "usual_ms": {"a stream": 10.0},
        "notes": {},
    }
    ledger = ledger or Ledger(tmp_path / "faults.jsonl")
    return make_report(ledger, Judge({}), **{**values, **changes})
