# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: time to first token as a distribution, and over the requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.serve.figures import over_time
from eval.serve.measure import LOAD, PRECOMPUTED, STREAM, WARM, Run


def plot_run(run: Run, folder: Path) -> list[Path]:
    """PNG files for one workload."""
    name = run.workload.spec.name.replace(":", "_")
    files = [
        _distribution(run, folder / f"{name}_ttft.png"),
        _time_line(run, folder / f"{name}_stream.png"),
    ]
    return [file for file in files if file is not None]


def _distribution(run: Run, file: Path) -> Path | None:
    """Share of requests whose first token came by then."""
    phases = [
        phase for phase in (WARM, PRECOMPUTED, LOAD) if any(m.phase == phase for m in run.measured)
    ]
    if not phases:
        return None
    figure, axes = _make_axes(len(phases))
    for axis, phase in zip(axes, phases, strict=True):
        for system in dict.fromkeys(m.system.name for m in run.measured if m.phase == phase):
            ttfts = [
                1e3 * record.ttft_s
                for m in run.measured
                if (m.system.name, m.phase) == (system, phase)
                for record in m.records
                if record.ttft_s is not None and not record.error
            ]
            axis.step(np.sort(ttfts), np.linspace(0, 1, len(ttfts)), label=system)
        axis.set_xscale("log")
        axis.set_title(phase)
        axis.set_xlabel("time to first token, ms")
        axis.legend(fontsize=7)
    axes[0].set_ylabel("share of requests")
    return _save(figure, file)


def _time_line(run: Run, file: Path) -> Path | None:
    """How hit rate and time to first token develop from an empty cache."""
    points = over_time(run, STREAM)
    if not points:
        return None
    figure, axes = _make_axes(2)
    for axis, key, title in (
        (axes[0], "hit_rate", "tokens found in a cache"),
        (axes[1], "ttft_ms_p50", "time to first token, ms (median)"),
    ):
        for system in dict.fromkeys(point["system"] for point in points):
            mine = [point for point in points if point["system"] == system]
            axis.plot([p["query_idx"] for p in mine], [p[key] for p in mine], label=system)
        axis.set_xlabel("request")
        axis.set_ylabel(title)
        axis.legend(fontsize=7)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    return _save(figure, file)


def _make_axes(number: int) -> tuple[Any, Sequence[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, number, figsize=(1 + 4 * number, 4), layout="constrained", squeeze=False
    )
    return figure, axes[0]


def _save(figure: Any, file: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(file, dpi=120)
    plt.close(figure)
    return file
