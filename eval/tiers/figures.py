# SPDX-License-Identifier: Apache-2.0
"""From samples to rows: medians, quartiles, and what a tier saves against computing anew."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from eval.tiers.phases import COLD, DEVICE, DISK, WARM, Measurement, Run

Row = dict[str, Any]


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, by linear interpolation; zeros for nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0, 0.0, 0.0
    if len(ordered) == 1:
        return ordered[0], ordered[0], ordered[0]
    first, middle, third = statistics.quantiles(ordered, n=4, method="inclusive")
    return first, middle, third


def make_rows(policy: str, run: Run, bytes_per_token: int) -> list[Row]:
    """A row for every size and phase, the cold ones by the phase they were measured beside.

    speedup      median over the prompts of the cold time beside it by the warm time; larger is
                 better
    above_device_ms   median over the prompts of what it takes longer than from the device
    bytes_per_s  what is loaded over that; 0 where nothing was
    as_named     prompts whose KV came from where the phase says, all of it, out of `prompts`
    """
    rows: list[Row] = []
    for size in sorted({sample.prompt.size for sample in run.samples}):
        for stretch in WARM:
            here = [s for s in run.samples if (s.prompt.size, s.stretch) == (size, stretch)]
            cold = [s for s in here if s.phase == COLD]
            warm = [s for s in here if s.phase == stretch]
            rows.append(_make_row(policy, cold, run.samples, bytes_per_token))
            row = _make_row(policy, warm, run.samples, bytes_per_token)
            cold_ms = {s.prompt.number: s.answered.ttft_ms for s in cold}
            ratios = [cold_ms[s.prompt.number] / s.answered.ttft_ms for s in warm]
            rows.append(row | {"speedup": round(statistics.median(ratios), 2)})
    return rows


def _make_row(
    policy: str,
    samples: Sequence[Measurement],
    everything: Sequence[Measurement],
    bytes_per_token: int,
) -> Row:
    phase, stretch = samples[0].phase, samples[0].stretch
    first, middle, third = quartiles(s.answered.ttft_ms for s in samples)
    device_ms = {s.prompt.number: s.answered.ttft_ms for s in everything if s.phase == DEVICE}
    above_ms = statistics.median(s.answered.ttft_ms - device_ms[s.prompt.number] for s in samples)
    loaded = statistics.median(s.answered.loaded for s in samples)
    return {
        "load_policy": policy,
        "size": samples[0].prompt.size,
        "phase": phase,
        "beside": stretch,
        "prompts": len(samples),
        "ttft_ms": round(middle, 1),
        "ttft_ms_q1": round(first, 1),
        "ttft_ms_q3": round(third, 1),
        "prompt_tokens": statistics.median(s.answered.prompt_tokens for s in samples),
        "shared_tokens": statistics.median(s.answered.shared for s in samples),
        "loaded_tokens": loaded,
        "computed_tokens": statistics.median(
            s.answered.prompt_tokens - s.answered.cached_tokens for s in samples
        ),
        "above_device_ms": round(above_ms, 1),
        "bytes_per_s": round(loaded * bytes_per_token / above_ms * 1e3) if above_ms > 0 else 0,
        "as_named": sum(s.is_as_named for s in samples),
    }


def make_movement(policy: str, run: Run) -> Row:
    """What moving between the tiers took: start-up, writing, fetching, and the server's own view.

    disk_write_bytes_per_s  of `POST /depcache/persist` until all is written, seen from outside
    disk_read_bytes_per_s   of values fetched into host memory one prompt at a time, likewise,
                            less the time of the same call when nothing is to be fetched
    measured                `measured` of /depcache/stats: what the server decides by
    """
    fetched_bytes = sum(fetch["bytes"] for fetch in run.prefetches)
    fetch_s = sum(fetch["ms"] for fetch in run.prefetches if fetch["bytes"]) / 1e3
    written = run.persisted
    return {
        "load_policy": policy,
        "start_s_empty_folder": round(run.start_s["empty"], 2),
        "start_s_warm_folder": round(run.start_s["warm"], 2),
        "disk_bytes": run.stats["persisted"]["tiers"]["disk"]["bytes"],
        "disk_values": run.stats["persisted"]["tiers"]["disk"]["nodes"],
        "disk_tokens": run.stats["persisted"]["tiers"]["disk"]["tokens"],
        "disk_write_s": round(written["seconds"], 3),
        "disk_write_bytes_per_s": _rate(written["bytes"], written["seconds"]),
        "disk_read_bytes_per_s": _rate(fetched_bytes, fetch_s),
        "fetch_ms": {
            str(size): round(
                statistics.median(f["ms"] for f in run.prefetches if f["size"] == size), 1
            )
            for size in sorted({fetch["size"] for fetch in run.prefetches})
        },
        "measured": {name: stats["measured"] for name, stats in run.stats.items()},
        "disk_counters": {
            name: {
                key: stats["tiers"]["disk"][key]
                for key in ("inserted", "loaded", "recomputed", "failures", "dropped_nodes")
            }
            for name, stats in run.stats.items()
        },
    }


def _rate(num_bytes: float, seconds: float) -> int:
    return round(num_bytes / seconds) if seconds > 0 else 0


def make_table(policy: str, rows: Sequence[Row]) -> Table:
    """The rows of one load policy; each cold line was measured beside the line below it."""
    table = Table(title=f"time to first token by where the KV is; load policy {policy}")
    for name in ("tokens", "phase"):
        table.add_column(name, justify="left")
    for name in ("ms", "quartiles", "loaded", "computed", "speed-up", "as named"):
        table.add_column(name, justify="right")
    for row in rows:
        if row["load_policy"] != policy:
            continue
        table.add_row(
            str(row["size"]),
            row["phase"],
            f"{row['ttft_ms']:.0f}",
            f"{row['ttft_ms_q1']:.0f}-{row['ttft_ms_q3']:.0f}",
            f"{row['loaded_tokens']:.0f}",
            f"{row['computed_tokens']:.0f}",
            f"{row['speedup']:.2f}" if "speedup" in row else "",
            f"{row['as_named']}/{row['prompts']}",
            end_section=row["phase"] == DISK,
        )
    return table
