# SPDX-License-Identifier: Apache-2.0
"""What is noted of every request, and the summary of many, under the names SGLang uses.

The keys are those of `sglang.bench_serving` where it has one (`median_ttft_ms`,
`request_throughput`, ...); `hit_rate` and `computed_tokens` are of the prompt's tokens as the
server counts them in `usage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERCENTILES = (90, 95, 99)
SOURCES = ("shared", "shifted", "loaded", "missed", "recomputed", "settled", "plain")


@dataclass(slots=True)
class Record:
    """One request.

    query_idx      its place in the phase
    arrival_s      when it was due, seconds from the start of the phase
    sent_s         when it was sent; in a closed loop the same
    ttft_s         from being due to the first text; None: there was none. Waiting for a free
                   connection, or for this process, counts: a user would have waited
    itl_s          between one piece of text and the next
    prompt_tokens  as the system saw them: of a dependency tree, fewer than of its text
    report         DepCache's own; empty for others
    error          what went wrong, in a sentence; "": nothing. Of a request that failed no time
                   counts
    """

    rid: str
    system: str
    workload: str
    phase: str
    round: int
    query_idx: int
    arrival_s: float = 0.0
    sent_s: float = 0.0
    ttft_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    e2e_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    output_text: str = ""
    error: str = ""

    @property
    def ended_s(self) -> float:
        """When it was complete, seconds from the start of the phase."""
        return self.arrival_s + self.e2e_s

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not found in any cache, those of a settle pass among them."""
        return self.prompt_tokens - self.cached_tokens + int(self.report.get("settled", 0))


def summarize(
    records: Sequence[Record], duration_s: float, *, ttft_limit_s: float | None = None
) -> dict[str, Any]:
    """Returns the figures of one phase of one system.

    duration_s    from the first request to the end of the last
    ttft_limit_s  for `request_goodput`: completed requests a second whose first token came in
                  time
    """
    done = [record for record in records if not record.error and record.ttft_s is not None]
    prompt = sum(record.prompt_tokens for record in done)
    cached = sum(record.cached_tokens for record in done)
    computed = sum(record.computed_tokens for record in done)
    output = sum(record.output_tokens for record in done)
    summary: dict[str, Any] = {
        "completed": len(done),
        "failed": len(records) - len(done),
        "duration": duration_s,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(done) / duration_s,
        "input_throughput": prompt / duration_s,
        "output_throughput": output / duration_s,
        "total_throughput": (prompt + output) / duration_s,
        "hit_rate": cached / prompt if prompt else 0.0,
        "cached_tokens": cached,
        "computed_tokens": computed,
    }
    if ttft_limit_s is not None:
        in_time = sum(record.ttft_s <= ttft_limit_s for record in done if record.ttft_s is not None)
        summary["request_goodput"] = in_time / duration_s
        summary["goodput_ttft_limit_ms"] = ttft_limit_s * 1e3
    times = {
        "ttft": [record.ttft_s for record in done if record.ttft_s is not None],
        "itl": [gap for record in done for gap in record.itl_s],
        "tpot": [_tpot(record) for record in done if record.output_tokens > 1],
        "e2e_latency": [record.e2e_s for record in done],
    }
    for name, values in times.items():
        summary |= _spread(name, values)
    for source in SOURCES:
        summary[source] = sum(int(record.report.get(source, 0)) for record in done)
    return summary


def _tpot(record: Record) -> float:
    """Time per output token behind the first."""
    assert record.ttft_s is not None
    return (record.e2e_s - record.ttft_s) / (record.output_tokens - 1)


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    values = 1e3 * np.asarray(seconds)
    found = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
    found |= {f"p{share}": np.percentile(values, share) for share in PERCENTILES}
    return {f"{key}_{name}_ms": float(value) for key, value in found.items()}
