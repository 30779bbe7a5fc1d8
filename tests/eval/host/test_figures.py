# SPDX-License-Identifier: Apache-2.0
"""Figures are medians of what was measured, and ratios are to stock SGLang."""

from __future__ import annotations

from eval.host.ask import Answer
from eval.host.figures import make_figures, to_text
from eval.host.measure import STOCK, TEXT, Measured
from eval.host.servers import DETOKENIZER, FRONT, SCHEDULER


def measured(front: float, scheduler: float, ttft: float, computed: int) -> Measured:
    answers = [Answer(ttft + i, ttft + i + 1, 100, computed) for i in (-1, 0, 4)]
    spent = [
        {FRONT: front + i, SCHEDULER: scheduler + i, DETOKENIZER: 0.5} for i in (-1.0, 0.0, 5.0)
    ]
    return Measured([10, 20], answers, spent)


def test_each_form_has_its_medians_and_the_ratio_is_to_stock() -> None:
    found = {TEXT: measured(4, 10, 15, 20), STOCK: measured(9, 20, 30, 1)}
    found[TEXT].samples = {(FRONT, "forest"): 1, (FRONT, "http/json"): 3}
    figures = make_figures(found)
    ours, stock = figures[TEXT], figures[STOCK]
    assert (ours["front_ms"], ours["scheduler_ms"], ours["detokenizer_ms"]) == (4, 10, 0.5)
    assert (ours["processor_ms"], ours["processor_ms_quartiles"]) == (14.5, [13.5, 19.5])
    assert (ours["computed_tokens"], ours["prompt_tokens"], ours["requests"]) == (20, 100, 3)
    assert ours["by_stage"] == {
        FRONT: {"http/json": 3.0, "forest": 1.0},
        SCHEDULER: {},
        DETOKENIZER: {},
    }
    assert "by_stage" not in stock
    assert figures["ttft_ms"][TEXT] == {"median": 15, "low": 14.5, "high": 17}
    assert figures["ratio"] == {TEXT: {"processor": round(14.5 / 29.5, 3), "ttft": 0.5}}
    assert figures["wire_bytes"] == {TEXT: 15, STOCK: 15}


def test_a_table_names_every_form_and_stage() -> None:
    found = {TEXT: measured(4, 10, 15, 20), STOCK: measured(9, 20, 30, 1)}
    found[TEXT].samples = {(FRONT, "forest"): 1}
    text = to_text(make_figures(found))
    for word in (TEXT, STOCK, "forest", "20 of 100", "14.50"):
        assert word in text
