# SPDX-License-Identifier: Apache-2.0
"""Fused answers are judged by their flat prompt, and the guard does what follows from it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from depcache.config import Config
from depcache.prompt.recompute import Recompute
from depcache.prompt.roots import MARK
from depcache.select.guard import LAST_STEP, WINDOW, QualityGuard
from sglang_patches.requests.fused import GUARDED
from sglang_patches.requests.shadow import Shadow, read_agreement, shadow
from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.fused_oracle import fuse
from tests.helpers.prompts import TreePrompt, plain, random_tokens

pytestmark = pytest.mark.sglang

NUM_ROWS = 6
MIN_AGREEMENT = Config.model_fields["fused_min_agreement"].default


@pytest.fixture(scope="module")
def engine(model_path: Callable[[str], Path]) -> Iterator[RunningEngine]:
    environment = {"DEPCACHE_FUSED_SHADOW_SHARE": "1", "DEPCACHE_FUSED_MIN_AGREEMENT": "1"}
    with start_engine(model_path("llama_gqa"), environment=environment) as running:
        yield running


class Asker:
    """Asks about the same rows, which are cached, in another order each time."""

    def __init__(
        self,
        engine: RunningEngine,
        seed: int,
        system_len: int = 6,
        row_len: int = 25,
        **options: str,
    ) -> None:
        rng = random.Random(seed)
        self.engine, self._rng, self._options = engine, rng, options
        self._system = random_tokens(rng, system_len)
        self._rows = [(random_tokens(rng, row_len), []) for _ in range(NUM_ROWS)]
        engine.ask(TreePrompt(self._system, self._rows, random_tokens(rng, 3)), 1, **options)

    def next(self, share: float, **asked: Any) -> tuple[TreePrompt, dict[str, Any]]:
        """The prompt, and the answer to it once every answer so far has been judged."""
        prompt = TreePrompt(
            self._system,
            self._rng.sample(self._rows, NUM_ROWS),
            random_tokens(self._rng, 4),
        )
        fused = fuse(prompt, recompute=share, **{"pin": False, **asked})
        reply = self.engine.ask(fused, 8, **self._options)
        self.engine.run(_judged())
        return prompt, reply


async def _judged() -> None:
    await asyncio.gather(*shadow().tasks)


@pytest.fixture
def fresh(engine: RunningEngine, monkeypatch: pytest.MonkeyPatch) -> RunningEngine:
    """The engine, with a guard that has seen nothing."""
    monkeypatch.setattr("sglang_patches.requests.shadow._shadow", Shadow(1.0, 1.0))
    return engine


def test_agreement_is_that_of_the_flat_prompt(fresh: RunningEngine) -> None:
    asker = Asker(fresh, 1)
    prompt, reply = asker.next(0.05, select="random")
    assert reply["meta_info"]["depcache"]["see"] == "fused"
    answer = reply["output_ids"]
    firsts = []
    for number in range(len(answer)):  # each behind the same beginning
        [first] = fresh.ask(plain(prompt.tokens + answer[:number]), 1)["output_ids"]
        firsts.append(first)
    agreement = sum(a == b for a, b in zip(answer, firsts, strict=True)) / len(answer)
    assert shadow().guard.agreement == pytest.approx(agreement)
    assert agreement < 1  # or the next test shows nothing


def test_answers_that_differ_raise_the_share_and_then_end_fusing(fresh: RunningEngine) -> None:
    asker = Asker(fresh, 2)
    shares: list[float] = []
    for _ in range(100):
        prompt, reply = asker.next(0.01, select="random")
        report = reply["meta_info"]["depcache"]
        if report["see"] == "fused":
            shares.append(report["recompute"])
        elif report["fallback_reason"] == GUARDED:
            break  # else it was cheaper: judging has cached flat prompts
    assert shadow().guard.step == LAST_STEP
    assert sorted(set(shares)) == [0.01, 0.15, 0.3, 0.5] and shares == sorted(shares)
    assert (report["fallback_reason"], report["differs"]) == (GUARDED, [])
    assert reply["output_ids"] == fresh.ask(plain(prompt.tokens), 8)["output_ids"]
    pinned = asker.next(0.01, select="random", pin=True)[1]["meta_info"]["depcache"]
    assert (pinned["see"], pinned["recompute"]) == ("fused", 0.01)
    fresh.check_conservation()


def test_a_broken_selector_ends_fusing_within_400_requests_and_it_comes_back(
    fresh: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Shadow(0.05, MIN_AGREEMENT)  # one answer in twenty is judged
    monkeypatch.setattr("sglang_patches.requests.shadow._shadow", kept)
    broken = Asker(fresh, 5)
    for _ in range(400):
        broken.next(0.01, select="random")
        if kept.guard.step == LAST_STEP:
            break
    assert kept.guard.step == LAST_STEP

    # One-token rows behind a long system weigh little, so nine of ten tokens are the flat prompt's.
    mended = Asker(fresh, 6, system_len=450, row_len=1)
    kept = Shadow(1.0, 0.5)
    kept.guard = QualityGuard(0.5, window=10)
    kept.guard.step = LAST_STEP
    monkeypatch.setattr("sglang_patches.requests.shadow._shadow", kept)
    steps: list[int] = []
    for _ in range(200):
        mended.next(0.01, select="random")
        steps.append(kept.guard.step)
        if not kept.guard.step:
            break
    assert sorted(set(steps), reverse=True) == [4, 3, 2, 1, 0]
    assert steps == sorted(steps, reverse=True)
    report = mended.next(0.01, select="random")[1]["meta_info"]["depcache"]
    assert (report["see"], report["recompute"]) == ("fused", 0.01)


def test_answers_that_are_the_flat_prompts_change_nothing(fresh: RunningEngine) -> None:
    asker = Asker(fresh, 3)
    for _ in range(8):
        asker.next(1)
        asker.next(0.02, select="random", pin=True)
    assert shadow().guard.agreement is None  # neither is judged
    prompt, _ = asker.next(0.02, select="random")
    assert shadow().guard.agreement is not None and prompt


def test_the_guard_leaves_pins_indices_and_whole_prompts_alone() -> None:
    kept = Shadow(1.0, 0.9)
    kept.guard.step = LAST_STEP
    for recompute in (
        Recompute(0.1, is_pinned=True),
        Recompute(select="given", selected=(3,)),
        Recompute(1),
    ):
        assert kept.allow(recompute) == recompute
    assert kept.allow(Recompute(0.1)) is None
    kept.guard.step = 1
    assert kept.allow(Recompute(0.2, select="random", seed=3)) == Recompute(
        0.4, select="random", seed=3
    )


def test_asking_what_is_allowed_changes_nothing_and_flat_answers_do() -> None:
    kept = Shadow(1.0, 0.9)
    kept.guard.step = LAST_STEP
    for _ in range(2 * WINDOW):
        assert kept.allow(Recompute(0.1)) is None  # as `/depcache/explain` does
    assert kept.guard.step == LAST_STEP
    for _ in range(WINDOW):
        kept.pass_over()
    assert kept.guard.step == LAST_STEP - 1


def test_what_is_judged_is_cached_for_its_tenant_alone(fresh: RunningEngine) -> None:
    # Sealing it a second time would change it.
    tenant = f"{MARK}a tenant"
    asker = Asker(fresh, 4, extra_key=tenant)
    prompt, reply = asker.next(0.02, select="random")
    assert reply["meta_info"]["depcache"]["see"] == "fused"
    assert shadow().guard.agreement is not None

    def num_cached(**options: str) -> int:
        return fresh.ask(plain(prompt.tokens), 1, **options)["meta_info"]["cached_tokens"]

    assert num_cached() == num_cached(extra_key="another") == 0
    assert num_cached(extra_key=tenant) == prompt.num_tokens - 1


def test_tokens_agree_where_they_are_the_first_choice() -> None:
    told = {
        "input_token_logprobs": [(None, 5, None), (-0.1, 7, None), (-2.0, 8, None)],
        "input_top_logprobs": [None, [(-0.1, 7, None)], [(-0.5, 9, None)]],
    }
    assert read_agreement(told) == 0.5
