# SPDX-License-Identifier: Apache-2.0
"""From replays to rows, gains in percentage points, a table and a plot.

A row is one workload, capacity, policy, scheduler and queue depth, averaged over the seeds.
A gain is the hit rate of LACR minus that of another policy, both first come, first served and
at the main queue depth, averaged over workloads and capacities; in percentage points.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from depcache.plan.schedule import FCFS
from eval.policy.matrix import Cell
from eval.policy.policies import OFFLINE, ONLINE
from eval.policy.replay import Outcome

Row = dict[str, Any]

CHALLENGER = "lacr"
BASELINES = ("lru", "lfu", "pgdsf")
SYNTHETIC = ("uniform", "zipfian", "temporal")


def make_rows(results: Iterable[tuple[Cell, Outcome]]) -> list[Row]:
    """One row for all seeds of a cell, in the order of the cells."""
    groups: dict[tuple[Any, ...], list[tuple[Cell, Outcome]]] = defaultdict(list)
    for cell, outcome in results:
        settings = cell.settings
        groups[
            cell.spec.kind,
            cell.spec.pool,
            cell.gb,
            cell.share,
            settings.policy,
            settings.scheduler,
            settings.queue_depth,
        ].append((cell, outcome))
    rows: list[Row] = []
    for (kind, pool, gb, share, policy, scheduler, depth), members in groups.items():
        members.sort(key=lambda member: member[0].spec.seed)
        rates = [outcome.hit_rate for _, outcome in members]
        rows.append(
            {
                "workload": kind,
                "pool": pool,
                "capacity_gb": gb,
                "capacity_share": share,
                "capacity_tokens": round(statistics.fmean(c.settings.capacity for c, _ in members)),
                "policy": policy,
                "scheduler": scheduler,
                "queue_depth": depth,
                "hit_rate": round(statistics.fmean(rates), 5),
                "spread": round(max(rates) - min(rates), 5),
                "by_request": round(statistics.fmean(o.by_request for _, o in members), 5),
                "seeds": [cell.spec.seed for cell, _ in members],
                "num_requests": members[0][1].num_requests,
                "context_tokens": round(statistics.fmean(o.context_tokens for _, o in members)),
                "evicted_tokens": round(statistics.fmean(o.evicted_tokens for _, o in members)),
                "seconds": round(sum(o.seconds for _, o in members), 2),
            }
        )
    return rows


def make_summary(rows: Sequence[Row], depth: int) -> dict[str, Any]:
    """Gains and the distance to the bound; None where a policy was not run.

    The headline is over the synthetic workloads at capacities in GB, which is what the paper's
    figures are over (section 6.4.1); `gains` splits it, and adds shares and traces.
    """
    main = [row for row in rows if row["queue_depth"] == depth and row["scheduler"] == FCFS]
    paper = [r for r in main if r["workload"] in SYNTHETIC and r["capacity_gb"] is not None]
    headline = paper or main
    traces = [r for r in main if r["workload"] not in SYNTHETIC]
    shares = [r for r in main if r["workload"] in SYNTHETIC and r["capacity_share"] is not None]
    groups: dict[str, list[Row]] = {"gigabytes": paper, "shares": shares, "traces": traces}
    for kind in dict.fromkeys(row["workload"] for row in main):
        groups[kind] = [r for r in main if r["workload"] == kind]
    others = [p for p in dict.fromkeys(r["policy"] for r in main) if p != CHALLENGER]
    return {
        "gain_points": {name: _gap(headline, CHALLENGER, name) for name in BASELINES},
        "belady_gap_points": _gap(headline, OFFLINE, CHALLENGER),
        "gains": {
            group: {name: _gap(members, CHALLENGER, name) for name in others}
            for group, members in groups.items()
            if members
        },
        "mean_hit_rate": {
            policy: _mean([r["hit_rate"] for r in headline if r["policy"] == policy])
            for policy in dict.fromkeys(r["policy"] for r in headline)
        },
        "scheduler_points": _scheduler_points(rows, depth),
        "below_baseline": _list_losses([row for row in rows if row["scheduler"] == FCFS]),
    }


def _cell_of(row: Row) -> tuple[Any, ...]:
    return row["workload"], row["pool"], row["capacity_gb"], row["capacity_share"]


def _gap(rows: Sequence[Row], better: str, worse: str) -> float | None:
    """Mean over the cells that both have of the difference, in percentage points."""
    rates = {(_cell_of(row), row["policy"]): row["hit_rate"] for row in rows}
    gaps = [
        rate - rates[cell, worse]
        for (cell, policy), rate in rates.items()
        if policy == better and (cell, worse) in rates
    ]
    return round(100 * statistics.fmean(gaps), 3) if gaps else None


def _scheduler_points(rows: Sequence[Row], depth: int) -> dict[str, dict[str, float]]:
    """Policy to scheduler to what it adds to first come, first served, in percentage points."""
    at_depth = [row for row in rows if row["queue_depth"] == depth]
    plain = {(_cell_of(r), r["policy"]): r["hit_rate"] for r in at_depth if r["scheduler"] == FCFS}
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in at_depth:
        key = (_cell_of(row), row["policy"])
        if row["scheduler"] != FCFS and key in plain:
            found[row["policy"]][row["scheduler"]].append(row["hit_rate"] - plain[key])
    return {
        policy: {name: round(100 * statistics.fmean(gains), 3) for name, gains in by_name.items()}
        for policy, by_name in found.items()
    }


def _list_losses(rows: Sequence[Row]) -> list[str]:
    """Where LACR is below LRU or LFU, at any depth of the queue, in words."""
    rates = {(_cell_of(r), r["policy"]): r["hit_rate"] for r in rows if r["policy"] != CHALLENGER}
    losses: list[str] = []
    for row in rows:
        for name in ("lru", "lfu"):
            other = rates.get((_cell_of(row), name), 0.0)
            if row["policy"] == CHALLENGER and row["hit_rate"] < other:
                points = 100 * (other - row["hit_rate"])
                where = f"{row['workload']} {name_capacity(row)}, queue of {row['queue_depth']}"
                losses.append(f"{where}: {name} by {points:.2f}")
    return losses


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 5) if values else None


def name_capacity(row: Row) -> str:
    """ "8 GB" or "5 %"."""
    if row["capacity_gb"] is not None:
        return f"{row['capacity_gb']:g} GB"
    return f"{100 * row['capacity_share']:g} %"


def make_table(rows: Sequence[Row]) -> Table:
    """Hit rates in percent: a line for each policy, scheduler and depth, a column for each cell."""
    cells = list(dict.fromkeys((row["workload"], name_capacity(row)) for row in rows))
    table = Table(title="Token hit rate, %", box=None, pad_edge=False)
    for name in ("policy", "order", "queue"):
        table.add_column(name)
    for workload, capacity in cells:
        table.add_column(f"{workload}\n{capacity}", justify="right")
    table.add_column("mean", justify="right")
    lines: dict[tuple[str, str, int], dict[tuple[str, str], float]] = defaultdict(dict)
    for row in rows:
        line = lines[row["policy"], row["scheduler"], row["queue_depth"]]
        line[row["workload"], name_capacity(row)] = 100 * row["hit_rate"]
    for (policy, scheduler, depth), line in lines.items():
        values = [f"{line[cell]:.1f}" if cell in line else "" for cell in cells]
        # A mean over other cells than the rest would mislead.
        mean = f"{statistics.fmean(line.values()):.1f}" if len(line) == len(cells) else ""
        table.add_row(policy, scheduler, str(depth), *values, mean)
    return table


def write_plot(path: Path, rows: Sequence[Row], depth: int) -> bool:
    """Hit rate over capacity, first come, first served, a panel for each workload.

    False without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    panels = _panels(rows, depth)
    num_columns = min(3, max(1, len(panels)))
    num_lines = -(-len(panels) // num_columns)
    figure, axes = pyplot.subplots(
        num_lines, num_columns, figsize=(5 * num_columns, 3.6 * num_lines), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, unit, lines) in zip(axes.flat, panels, strict=False):
        for name, points in lines.items():
            points.sort()
            style = {OFFLINE: "k--", ONLINE: "k:"}.get(name, "o-")
            axis.plot([x for x, _ in points], [y for _, y in points], style, ms=3, label=name)
        axis.set_title(title)
        axis.set_xlabel(unit)
        axis.set_ylabel("token hit rate, %")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    if panels:
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 0.97), fontsize=8)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return True


def _panels(
    rows: Sequence[Row], depth: int
) -> list[tuple[str, str, dict[str, list[tuple[float, float]]]]]:
    """Title, unit of the x axis, and the points of each line."""
    panels: list[tuple[str, str, dict[str, list[tuple[float, float]]]]] = []

    def add(title: str, unit: str, members: Sequence[Row], x: Callable[[Row], float]) -> None:
        lines: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in members:
            lines[row["policy"]].append((x(row), 100 * row["hit_rate"]))
        if lines:
            panels.append((title, unit, dict(lines)))

    for kind in dict.fromkeys(row["workload"] for row in rows):
        here = [r for r in rows if r["workload"] == kind and r["queue_depth"] == depth]
        here = [r for r in here if r["scheduler"] == FCFS]
        with_gb = [r for r in here if r["capacity_gb"] is not None]
        with_share = [r for r in here if r["capacity_share"] is not None]
        add(kind, "capacity, GB", with_gb, lambda r: r["capacity_gb"])
        add(kind, "capacity, % of all", with_share, lambda r: 100 * r["capacity_share"])
    return panels
