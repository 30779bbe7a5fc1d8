# SPDX-License-Identifier: Apache-2.0
"""Judges an engine's answer by the oracle's log-probabilities, and keeps the worst errors seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.helpers.tolerance import ORACLE_LOGPROB


def worst_error(result: dict[str, Any], logprobs: torch.Tensor) -> float:
    """Largest |difference of log-probabilities| over an answer's tokens and its top ones.

    logprobs  (num_new, vocab_size) float32, the oracle's, given this answer

    AssertionError if the answer is not the oracle's.
    """
    assert_greedy(result, logprobs)
    tokens, meta = result["output_ids"], result["meta_info"]
    rows = list(zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True))
    # SGLang 0.5.17, with its own cache too: a retraction right after a prefill can lose the
    # first row under the overlap scheduler. The rows that are there are the last ones.
    num_lost = len(tokens) - len(rows)
    assert num_lost == 0 or (num_lost == 1 and meta["num_retractions"] > 0)
    error = 0.0
    for step, (chosen, top) in enumerate(rows, num_lost):
        assert chosen[1] == tokens[step]
        for logprob, token, _ in [chosen, *top]:
            error = max(error, abs(logprob - float(logprobs[step, token])))
    return error


def assert_greedy(result: dict[str, Any], logprobs: torch.Tensor) -> None:
    """AssertionError if a token of the answer is not the oracle's likeliest.

    Two tokens that the oracle cannot tell apart within the tolerance count as equal.
    """
    tokens = result["output_ids"]
    assert len(tokens) == len(logprobs)
    behind_best = logprobs.max(-1).values - logprobs[range(len(tokens)), tokens]
    assert behind_best.max() <= ORACLE_LOGPROB, (
        f"token {int(behind_best.argmax())} of {tokens} is {float(behind_best.max()):.3f} less "
        f"likely than the oracle's {int(logprobs[int(behind_best.argmax())].argmax())}"
    )


class OracleReport:
    """Worst error per layout and attention plan, for the record."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], dict[str, Any]] = {}

    def note(self, layout: str, plan: str, case: str, error: float) -> None:
        entry = self.entries.setdefault(
            (layout, plan), {"num_answers": 0, "max_abs_dlogprob": 0.0, "worst_case": case}
        )
        entry["num_answers"] += 1
        if error > entry["max_abs_dlogprob"]:
            entry.update(max_abs_dlogprob=error, worst_case=case)

    def write(self, file: Path) -> None:
        rows = [
            {"layout": layout, "plan": plan, **entry}
            for (layout, plan), entry in sorted(self.entries.items())
        ]
        file.write_text(
            json.dumps({"tolerance": ORACLE_LOGPROB, "dtype": "float32", "rows": rows}, indent=2)
        )
