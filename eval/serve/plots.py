# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: time to first token as a distribution, and over the requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.serve.figures import over_time
from eval.serve.measure import LOAD, PRECOMPUTED, STREAM, WARM, Run
from eval.serve.systems import KNOWN

PHASE_TITLES = {
    WARM: "warm",
    PRECOMPUTED: "trees computed ahead",
    LOAD: "several users at once",
}


def plot_run(run: Run, folder: Path) -> list[Path]:
    """PNG files for one workload."""
    name = run.workload.spec.name.replace(":", "_")
    figures = {"ttft": draw_distribution(run), "stream": draw_time_line(run)}
    return [
        _save(figure, folder / f"{name}_{kind}.png")
        for kind, figure in figures.items()
        if figure is not None
    ]


def draw_distribution(run: Run) -> Any:
    """Share of requests whose first token came by then; None without such requests."""
    phases = [
        phase for phase in (WARM, PRECOMPUTED, LOAD) if any(m.phase == phase for m in run.measured)
    ]
    if not phases:
        return None
    figure, axes = _make_axes(len(phases))
    for axis, phase in zip(axes, phases, strict=True):
        shown: list[float] = []
        for system in dict.fromkeys(m.system.name for m in run.measured if m.phase == phase):
            ttfts = [
                1e3 * record.ttft_s
                for m in run.measured
                if (m.system.name, m.phase) == (system, phase)
                for record in m.records
                if record.ttft_s is not None and not record.error
            ]
            if ttfts:
                axis.ecdf(ttfts, label=_title_of(system))
                shown += ttfts
        axis.set_title(PHASE_TITLES[phase])
        axis.set_xlabel("time to first token, ms")
        axis.set_ylim(0, 1.02)
        _scale(axis.xaxis, shown)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("share of requests")
    return figure


def draw_time_line(run: Run) -> Any:
    """How hit rate and time to first token develop from an empty cache; None without them."""
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
            # A mark for each, since one point alone makes no line.
            axis.plot(
                [p["query_idx"] for p in mine],
                [p[key] for p in mine],
                marker="o",
                markersize=3,
                label=_title_of(system),
            )
        axis.set_xlabel("request")
        axis.set_ylabel(title)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=7)
    axes[0].set_ylim(0, 1)
    _scale(axes[1].yaxis, [point["ttft_ms_p50"] for point in points])
    return figure


def _title_of(system: str) -> str:
    return KNOWN[system].title if system in KNOWN else system


def _scale(axis: Any, values: Sequence[float]) -> None:
    """Round numbers on an axis that do not touch each other: 1, 2, 5 of each decade or of few, 1.

    Linear where the values are less than ten times apart: decades would leave one number.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    decades = np.log10(max(values) / max(1e-6, min(values))) if values else 0.0
    if decades < 1:
        axis.set_major_locator(MaxNLocator(5))
        return
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.8 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


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
