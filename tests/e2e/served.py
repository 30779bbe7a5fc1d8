# SPDX-License-Identifier: Apache-2.0
"""An engine under test together with what judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.engine import RunningEngine, reuse_of, start_engine
from tests.helpers.judge import OracleReport, worst_error
from tests.helpers.oracle import Oracle, ShiftOracle
from tests.helpers.prompts import TreePrompt
from tests.helpers.tolerance import ORACLE_LOGPROB


@dataclass(frozen=True)
class EngineCase:
    """One way to run the engine. What a suite covers is the union over its cases."""

    name: str
    model: str
    plan: str
    chunk: int
    overlap: bool = True
    policy: str = "fcfs"
    long_layout: str = "tree"
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Served:
    """Asks the engine and judges every answer; an error lands in the report first."""

    case: EngineCase
    engine: RunningEngine
    oracle: Oracle
    report: OracleReport

    def ask(self, prompt: TreePrompt, num_new: int = 6, **options: Any) -> dict[str, Any]:
        """One answer, judged by a recompute: for the tree layout, or where no key moves."""
        result = self.engine.ask(prompt, num_new, **options)
        self.judge(prompt, result)
        return result

    def ask_together(
        self, prompts: Sequence[TreePrompt], num_new: int = 6, **options: Any
    ) -> list[dict[str, Any]]:
        """Answers to prompts that arrive together, each judged by a recompute."""
        results = self.engine.generate(prompts, num_new, **options)
        for prompt, result in zip(prompts, results, strict=True):
            self.judge(prompt, result)
        return results

    def judge(self, prompt: TreePrompt, result: dict[str, Any]) -> None:
        self._accept(prompt, result, self.oracle.score(prompt, result["output_ids"]))

    def judge_shifted(
        self, prompt: TreePrompt, result: dict[str, Any], shifts: ShiftOracle
    ) -> None:
        """Judge by the shift oracle, which must have seen the same prompts in the same order."""
        logprobs, reuse = shifts.score(prompt, result["output_ids"])
        self._accept(prompt, result, logprobs)
        assert reuse_of(result) == (reuse.shared, reuse.shifted, reuse.missed)
        num_tail = result["meta_info"]["depcache"]["tail"]
        assert num_tail == 0 or (prompt.layout == "tree" and not reuse.missed)
        assert result["meta_info"]["cached_tokens"] == reuse.shared + reuse.shifted + num_tail

    def ask_in_turn(self, prompts: Sequence[TreePrompt], num_new: int = 6) -> list[dict[str, Any]]:
        """Answers to one prompt after the other on an empty cache, judged as its layout asks.

        The tree layout must equal a recompute, the others what a shifting cache computes;
        what was shared, shifted and missed must be the shift oracle's count in each.
        """
        self.engine.flush()
        shifts = ShiftOracle(self.oracle)
        results = []
        for prompt in prompts:
            result = self.engine.ask(prompt, num_new)
            if prompt.layout == "tree":
                self.judge(prompt, result)
            self.judge_shifted(prompt, result, shifts)
            results.append(result)
        return results

    def _accept(self, prompt: TreePrompt, result: dict[str, Any], logprobs: Any) -> None:
        error = worst_error(result, logprobs)
        layout = "plain" if prompt.is_plain else prompt.layout
        self.report.note(layout, self.case.plan, self.case.name, error)
        assert error < ORACLE_LOGPROB


@contextmanager
def serve(
    case: EngineCase,
    model_path: Callable[[str], Path],
    oracle_of: Callable[[str], Oracle],
    report: OracleReport,
) -> Iterator[Served]:
    """Start the engine of `case`; no slot may be missing when the block ends."""
    with start_engine(
        model_path(case.model),
        environment={"DEPCACHE_ATTENTION_PLAN": case.plan, **case.environment},
        chunked_prefill_size=case.chunk,
        disable_overlap_schedule=not case.overlap,
        schedule_policy=case.policy,
        **case.arguments,
    ) as engine:
        yield Served(case, engine, oracle_of(case.model), report)
        engine.check_conservation()
        engine.flush()
        assert engine.check_conservation()["cached_tokens"] == 0
