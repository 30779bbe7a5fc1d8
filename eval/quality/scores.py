# SPDX-License-Identifier: Apache-2.0
"""How right an answer is: exact match and F1 of SQuAD, ROUGE-L, each against the best gold one.

EM and F1 are those of `transformers` (SQuAD 2.0: lower case, no articles, no punctuation),
ROUGE-L the F-measure of `rouge-score` without stemming. Intervals are of `scipy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Score:
    """How good one answer is, by three measures from 0 to 1."""

    em: float
    f1: float
    rouge_l: float


def score(answer: str, golds: Sequence[str]) -> Score:
    """Returns for each measure the best that any of `golds`, at least one, gives."""
    from transformers.data.metrics.squad_metrics import compute_exact, compute_f1

    return Score(
        em=float(max(compute_exact(gold, answer) for gold in golds)),
        f1=float(max(compute_f1(gold, answer) for gold in golds)),
        rouge_l=max(_rouge().score(gold, answer)["rougeL"].fmeasure for gold in golds),
    )


def interval(values: npt.ArrayLike, seed: int = 0) -> tuple[float, float]:
    """95 % of the mean, by bootstrap; the mean itself where all values are equal."""
    from scipy.stats import bootstrap

    array = np.asarray(values, float)
    if len(array) < 2 or (array == array[0]).all():
        return float(array.mean()), float(array.mean())
    found = bootstrap(
        (array,), np.mean, n_resamples=NUM_RESAMPLES, method="percentile", rng=seed
    ).confidence_interval
    return float(found.low), float(found.high)


def group_interval(values: npt.ArrayLike, groups: npt.ArrayLike) -> tuple[float, float]:
    """95 % of the mean, by bootstrap over groups: values of one group are not independent.

    groups  of each value, by numbers
    """
    _, numbers = np.unique(groups, return_inverse=True)
    sums, counts = np.bincount(numbers, np.asarray(values, float)), np.bincount(numbers)
    drawn = np.random.default_rng(0).integers(len(sums), size=(NUM_RESAMPLES, len(sums)))
    low, high = np.quantile(sums[drawn].sum(1) / counts[drawn].sum(1), (0.025, 0.975))
    return round(float(low), 4), round(float(high), 4)


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])
