# SPDX-License-Identifier: Apache-2.0
"""Judges answers while the storm goes on: by the oracle, in a process of its own, with one thread.

What is exact is judged by tokens and log-probabilities: plain prompts, the layout `tree`, and the
layouts that move keys where nothing was reused but the system. Where such a layout did reuse
something, what is right depends on what was asked before; of that answer only the length and
that its numbers are numbers can be judged.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eval.soak.prompts import Prompt

TOLERANCE = 5e-4
"""How far a log-probability may be off. In float32 alone the engine keeps 1e-4; in a batch of many,
whose sums are added in another order, 2e-4 was seen at tokens of e**-15."""
EXACT, COLD, FINITE = "exact", "exact, nothing reused", "finite and of the right length"
MAX_TOKENS = 2500
"""Longer prompts are not judged: the oracle's mask is quadratic."""

_NICE = 5


@dataclass(frozen=True)
class Answer:
    """What a server said to one prompt.

    tokens  of the answer
    rows    for each of the last tokens of the answer, its log-probability, and after it those of
            other tokens at its place, as (log-probability, token)
    """

    tokens: list[int]
    rows: list[list[tuple[float, int]]]
    num_asked: int
    num_retractions: int = 0


@dataclass(frozen=True)
class Verdict:
    """how     EXACT, COLD or FINITE
    weights  the oracle's that the answer fits, or fits best
    error    largest difference of a log-probability
    wrong    what is wrong, in words; "" if it is right
    """

    how: str
    weights: str
    error: float
    wrong: str


def how_to_judge(prompt: Prompt, report: Mapping[str, Any] | None) -> str:
    """EXACT, COLD or FINITE; `report` is the server's on what was reused when it first started."""
    if prompt.kind in ("plain", "tree"):
        return EXACT
    if report is None or report["retractions"]:  # what was cached meanwhile is reused then
        return FINITE
    # Found is found from the first token down: as much as the system is the system.
    reused = sum(report[name] for name in ("shared", "shifted", "loaded"))
    return COLD if reused <= prompt.system_len else FINITE


def shape_of(answer: Answer) -> str:
    """What is wrong with an answer's length and numbers; "" if nothing is."""
    if len(answer.tokens) != answer.num_asked:
        return f"{answer.num_asked} tokens were asked for and {len(answer.tokens)} came"
    # SGLang 0.5.17, with its own cache too: a retraction can lose the first row.
    lost = len(answer.tokens) - len(answer.rows)
    if not 0 <= lost <= answer.num_retractions:
        return f"{len(answer.tokens)} tokens have {len(answer.rows)} log-probabilities"
    for step, row in enumerate(answer.rows, lost):
        if row[0][1] != answer.tokens[step]:
            return f"token {step} is {answer.tokens[step]}, its log-probability {row[0][1]}'s"
        if not all(math.isfinite(logprob) and logprob <= 1e-4 for logprob, _ in row):
            return f"the log-probabilities of token {step} are {row}"
    return ""


def compare(answer: Answer, logprobs: np.ndarray) -> tuple[float, str]:
    """The largest difference, and what is wrong; "" if it is within the tolerance.

    logprobs  (len(answer.tokens), vocab_size), the oracle's, given this answer

    Two tokens that the oracle cannot tell apart count as equal.
    """
    chosen = logprobs[np.arange(len(answer.tokens)), answer.tokens]
    behind = logprobs.max(-1) - chosen
    lost = len(answer.tokens) - len(answer.rows)
    error = max(
        (
            abs(logprob - float(logprobs[step, token]))
            for step, row in enumerate(answer.rows, lost)
            for logprob, token in row
        ),
        default=0.0,
    )
    step = int(behind.argmax())
    if behind[step] > TOLERANCE:
        better = int(logprobs[step].argmax())
        return max(error, float(behind[step])), (
            f"token {step} is {answer.tokens[step]}, {behind[step]:.4f} less likely than {better}"
        )
    return error, f"a log-probability is {error:.5f} off" if error > TOLERANCE else ""


@dataclass
class Judge:
    """Give it answers; it says when one is wrong. A context manager that ends its process.

    folders      of the weights, by name
    max_waiting  answers that wait; more are let pass, unjudged, so that judging never slows asking
    """

    folders: Mapping[str, Path]
    max_waiting: int = 12
    judged: dict[str, int] = field(default_factory=dict)
    worst_error: float = 0.0
    num_passed: int = 0
    _waiting: int = 0

    def __enter__(self) -> Judge:
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _begin, (dict(self.folders),)
        )
        self._pool.submit(_ready).result(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def num_judged(self) -> int:
        return sum(self.judged.values())

    async def judge(
        self,
        prompt: Prompt,
        answer: Answer,
        weights: Sequence[str],
        report: Mapping[str, Any] | None,
        *,
        is_patient: bool = False,
    ) -> Verdict | None:
        """The verdict; None if there is no time to judge this answer.

        weights  those that the request may have run with
        """
        how = how_to_judge(prompt, report)
        wrong = shape_of(answer)
        if wrong or how == FINITE:
            verdict = Verdict(how, "", 0.0, wrong)
        elif len(prompt.input_ids) > MAX_TOKENS or (
            self._waiting >= self.max_waiting and not is_patient
        ):
            self.num_passed += 1
            return None
        else:
            self._waiting += 1
            try:
                verdict = await asyncio.get_running_loop().run_in_executor(
                    self._pool, _judge, prompt, answer, list(weights), how
                )
            except BrokenProcessPool:
                raise RuntimeError("the oracle's process ended: is there memory enough?") from None
            finally:
                self._waiting -= 1
        self.judged[how] = self.judged.get(how, 0) + 1
        if not verdict.wrong:
            self.worst_error = max(self.worst_error, verdict.error)
        return verdict


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a record of faults has it."""
    return asdict(verdict)


_oracles: dict[str, Any] = {}


def _begin(folders: dict[str, Path]) -> None:
    import torch

    from eval.soak.oracle import Oracle

    os.nice(_NICE)
    # The model is tiny and runs beside a server: threads would wait for each other.
    torch.set_num_threads(1)
    _oracles.update({name: Oracle(folder) for name, folder in folders.items()})


def _ready() -> bool:
    return bool(_oracles)


def _judge(prompt: Prompt, answer: Answer, weights: list[str], how: str) -> Verdict:
    verdicts = []
    for name in weights:
        logprobs = _oracles[name].score(prompt.input_ids, prompt.structure, answer.tokens)
        error, wrong = compare(answer, logprobs)
        verdicts.append(Verdict(how, name, error, wrong))
        if not wrong:
            break
    return min(verdicts, key=lambda verdict: (bool(verdict.wrong), verdict.error))
