# SPDX-License-Identifier: Apache-2.0
"""Exact match of every system on every set, with intervals, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Bars by set; rows as `python -m eval quality` reports them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sets = list(dict.fromkeys(row["set"] for row in rows))
    figure, axes = plt.subplots(
        1,
        len(sets),
        sharey=True,
        figsize=(2 + 2.6 * len(sets), 5),
        layout="constrained",
        squeeze=False,
    )
    for axis, name in zip(axes[0], sets, strict=True):
        mine = [row for row in rows if row["set"] == name]
        labels = [f"{row['system']} {row['layout']}".strip() for row in mine]
        values = [100 * row["em"] for row in mine]
        low = [100 * (row["em"] - row["em_95"][0]) for row in mine]
        high = [100 * (row["em_95"][1] - row["em"]) for row in mine]
        colors = ["tab:blue" if row["system"].startswith("DepAttn") else "tab:gray" for row in mine]
        axis.barh(labels, values, xerr=[low, high], color=colors, error_kw={"linewidth": 0.8})
        axis.set_title(f"{name} (n = {mine[0]['n']})", fontsize=9)
        axis.set_xlim(0, 100)
        axis.set_xlabel("exact match, %")
    axes[0][0].invert_yaxis()
    figure.savefig(file, dpi=150)
    plt.close(figure)
