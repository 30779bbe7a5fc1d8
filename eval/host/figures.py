# SPDX-License-Identifier: Apache-2.0
"""What was measured as figures: medians with quartiles, and ratios to stock SGLang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

import numpy as np

from eval.host.measure import STOCK, Measured
from eval.host.servers import PROCESSES
from eval.host.stages import share_out

PROCESSOR, TTFT = "processor", "ttft"


def make_figures(found: Mapping[str, Measured]) -> dict[str, Any]:
    """Returns the figures of one workload.

    Each form has by its name: `front_ms`, `scheduler_ms` and `detokenizer_ms`, processor time of a
    request, the median; `processor_ms`, their sum, and its quartiles; `by_stage`, where stages
    were looked for. `ratio` is of a form to stock SGLang.
    """
    figures: dict[str, Any] = {form: _make_form(each) for form, each in found.items()}
    times = {form: _spread(_times(each, "ttft_ms")) for form, each in found.items()}
    ratios = {
        form: {
            PROCESSOR: _ratio(figures[form]["processor_ms"], figures[STOCK]["processor_ms"]),
            TTFT: _ratio(times[form]["median"], times[STOCK]["median"]),
        }
        for form in found
        if form != STOCK
    }
    return figures | {
        "ratio": ratios,
        "wire_bytes": {form: round(mean(each.body_bytes)) for form, each in found.items()},
        "ttft_ms": times,
    }


def to_text(figures: Mapping[str, Any]) -> str:
    """A table of each form, and one of the stages."""
    from tabulate import tabulate

    forms = list(figures["ttft_ms"])
    rows = [
        (
            form,
            *(f"{figures[form][f'{name}_ms']:.2f}" for name in PROCESSES),
            f"{figures[form]['processor_ms']:.2f}",
            f"{figures['ttft_ms'][form]['median']:.2f}",
            f"{figures[form]['computed_tokens']:.0f} of {figures[form]['prompt_tokens']:,.0f}",
            f"{figures['wire_bytes'][form]:,}",
        )
        for form in forms
    ]
    head = ["form", *PROCESSES, "processor ms", "ttft ms", "tokens computed", "bytes"]
    tables = [tabulate(rows, head, tablefmt="github", disable_numparse=True)]
    stages = {form: figures[form].get("by_stage", {}) for form in forms}
    names = dict.fromkeys(
        (process, stage)
        for process in PROCESSES
        for form in forms
        for stage in stages[form].get(process, {})
    )
    if names:
        lines = [
            (*name, *(f"{stages[form].get(name[0], {}).get(name[1], 0):.2f}" for form in forms))
            for name in names
        ]
        head = ["process", "stage", *forms]
        tables.append(tabulate(lines, head, tablefmt="github", disable_numparse=True))
    return "\n\n".join(tables)


def _make_form(measured: Measured) -> dict[str, Any]:
    by_process = {
        name: _spread(each.get(name, 0.0) for each in measured.cpu_ms) for name in PROCESSES
    }
    whole = _spread(sum(each.values()) for each in measured.cpu_ms)
    figures: dict[str, Any] = {f"{name}_ms": by_process[name]["median"] for name in PROCESSES}
    figures |= {
        "processor_ms": whole["median"],
        "processor_ms_quartiles": [whole["low"], whole["high"]],
        "e2e_ms": _spread(_times(measured, "e2e_ms"))["median"],
        "requests": len(_times(measured, "ttft_ms")),
        "prompt_tokens": round(mean(_times(measured, "prompt_tokens")), 1),
        "computed_tokens": round(mean(_times(measured, "computed_tokens")), 1),
    }
    if measured.samples:
        spent = {name: by_process[name]["median"] for name in PROCESSES}
        figures["by_stage"] = share_out(measured.samples, spent)
        figures["samples"] = sum(measured.samples.values())
    return figures


def _times(measured: Measured, name: str) -> list[float]:
    return [getattr(answer, name) for answer in measured.answers]


def _spread(values: Iterable[float]) -> dict[str, float]:
    low, middle, high = np.percentile(list(values), (25, 50, 75)).tolist()
    return {"median": round(middle, 2), "low": round(low, 2), "high": round(high, 2)}


def _ratio(value: float, stock: float) -> float:
    return round(value / stock, 3) if stock else 0.0
