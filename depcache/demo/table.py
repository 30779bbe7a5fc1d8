# SPDX-License-Identifier: Apache-2.0
"""Show a person what the demo measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from depcache.demo.run import DEPCACHE, SGLANG, Answer, add_up, ttft_ms

TITLES = {DEPCACHE: "DepCache", SGLANG: "SGLang"}
NOISE = "The model has random weights: its answers are noise."


def make_table(answers_of: Mapping[str, Sequence[Answer]]) -> Table:
    """One column per system; token counts are sums over all questions of both passes."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    figures = {system: add_up(answers) for system, answers in answers_of.items()}
    for system in figures:
        table.add_column(TITLES[system], justify="right")
    rows = {
        "questions asked": [f"{f.questions}" for f in figures.values()],
        "prompt tokens, flat": [f"{f.flat_tokens:,}" for f in figures.values()],
        "prompt tokens, in the tree": [
            f"{f.tree_tokens:,}" if system == DEPCACHE else "-" for system, f in figures.items()
        ],
        "reused": [
            f"{f.reused_tokens:,} ({f.reused_tokens / f.tree_tokens:.0%})" for f in figures.values()
        ],
        "computed": [f"{f.computed_tokens:,}" for f in figures.values()],
        "time to first token, first order": [
            f"{ttft_ms(answers, 0):.0f} ms" for answers in answers_of.values()
        ],
        "time to first token, second order": [
            f"{ttft_ms(answers, 1):.0f} ms" for answers in answers_of.values()
        ],
        "speed-up": [_speed_up(answers_of, system) for system in answers_of],
        "right answers": [f"{f.correct} of {f.questions}" for f in figures.values()],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _speed_up(answers_of: Mapping[str, Sequence[Answer]], system: str) -> str:
    """How many times sooner than stock SGLang the first token came, by the medians."""
    if system == SGLANG or SGLANG not in answers_of:
        return "-"
    return f"{ttft_ms(answers_of[SGLANG]) / ttft_ms(answers_of[system]):.1f}x"


def make_samples(answers: Sequence[Answer], count: int = 3) -> Table:
    """A few questions, their answers and the right ones."""
    table = Table(box=None, pad_edge=False)
    for title in ("question", "answer", "right"):
        table.add_column(title, overflow="fold")
    step = max(1, len(answers) // count)
    for answer in answers[::step][:count]:
        question = answer.asked.question
        said = repr(" ".join(answer.text.split()))[1:-1]
        table.add_row(Text(question.text), Text(said or "(nothing)"), Text(question.answers[0]))
    return table


def make_verdict(answers_of: Mapping[str, Sequence[Answer]]) -> str:
    """One line; it says so, too, where DepCache is not the faster one."""
    ours, theirs = answers_of.get(DEPCACHE), answers_of.get(SGLANG)
    if not ours or not theirs:
        [(system, answers)] = answers_of.items()
        figures = add_up(answers)
        return (
            f"{TITLES[system]} reused {figures.reused_tokens / figures.tree_tokens:.0%} of the "
            f"prompt tokens; first token after {figures.ttft_ms_median:.0f} ms (median)."
        )
    mine, stock = add_up(ours), add_up(theirs)
    speed_up = stock.ttft_ms_median / mine.ttft_ms_median
    computed = stock.computed_tokens / max(1, mine.computed_tokens)
    pace = f"{speed_up:.1f}x sooner" if speed_up >= 1 else f"{1 / speed_up:.1f}x later"
    return (
        f"DepCache computed {computed:.1f}x fewer prompt tokens than the same SGLang without it, "
        f"and its first token came {pace} (median {mine.ttft_ms_median:.0f} ms against "
        f"{stock.ttft_ms_median:.0f} ms)."
    )
