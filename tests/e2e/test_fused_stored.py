# SPDX-License-Identifier: Apache-2.0
"""Rows as past prompts left them, with what leaned on others computed again: `stored`."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from depcache.select.variants import Masses, Variants
from sglang_patches.requests import copies as copies_module
from sglang_patches.requests import fused as fused_module
from tests.e2e import test_fused_by_score as by_score
from tests.e2e.served import EngineCase, Served
from tests.e2e.test_fused_behind import error_of
from tests.helpers.fused_oracle import FusedOracle, fuse
from tests.helpers.prompts import TreePrompt, plain, random_tokens
from tests.helpers.tolerance import ORACLE_LOGPROB

CFO = {"radix_eviction_policy": "cfo"}
ENGINES = [
    EngineCase("auto", "llama_gqa", "auto", chunk=2048),
    EngineCase("segments-chunk8", "llama_mha", "segments", 8, False, arguments=CFO),
]

pytestmark = pytest.mark.sglang

told = by_score.told


@pytest.fixture(scope="module", params=[pytest.param(case, id=case.name) for case in ENGINES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


@pytest.fixture
def rng() -> random.Random:
    return random.Random(17)


@dataclass
class Seen:
    """What the server made of its last request: indices, and what each row stands behind."""

    selected: list[int] = field(default_factory=list[int])
    behind: list[list[int] | None] | None = None
    variants: Variants | None = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    looks_of, take = fused_module.looks_of, fused_module._take_copies

    def look(manager: Any) -> Any:
        seen.variants = looks_of(manager).variants
        return looks_of(manager)

    def note(obj: Any, fused: Any, copies: Any) -> None:
        seen.selected = copies.selected.tolist()
        seen.behind = copies.behind and [each and list(each) for each in copies.behind]
        take(obj, fused, copies)

    monkeypatch.setattr(fused_module, "looks_of", look)
    monkeypatch.setattr(fused_module, "_take_copies", note)
    return seen


def make_rows(rng: random.Random, num: int) -> list[list[int]]:
    return [random_tokens(rng, rng.randint(6, 14)) for _ in range(num)]


def make_prompt(rng: random.Random, system: list[int], rows: list[list[int]]) -> TreePrompt:
    return TreePrompt(system, [(row, []) for row in rows], random_tokens(rng, 3))


def ask(served: Served, prompt: TreePrompt, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer, and its report."""
    result = served.engine.ask(fuse(prompt, select="stored", **asked))
    return result, result["meta_info"]["depcache"]


@torch.no_grad()
def masses_of(oracle: FusedOracle, prompt: TreePrompt) -> list[Masses]:
    """The same from HuggingFace's own attention weights."""
    output = oracle.model(input_ids=torch.tensor([prompt.tokens]), output_attentions=True)
    weights = torch.stack(output.attentions).double().mean((0, 2))[0].numpy()
    starts = np.cumsum([len(prompt.system), *(len(row) for row, _ in prompt.trees)])
    found: list[Masses] = []
    for row, (start, stop) in enumerate(itertools.pairwise(starts)):
        own = weights[start:stop]
        to_rows = np.add.reduceat(own, starts, axis=1)[:, :row]
        order = np.argsort(-to_rows.sum(1), kind="stable").tolist()
        found.append(
            Masses(to_rows.sum(0).tolist(), float(np.tril(own[:, start:stop], -1).sum()), order)
        )
    return found


def expect(variants: Variants, rows: list[list[int]], start: int, alpha: float = 1.0) -> Any:
    """The indices and what the rows stand behind, by what these variants say."""
    keys = [str(row).encode() for row in rows]
    fixes = variants.choose(keys, list(map(len, rows)), alpha, [True] * len(rows))
    selected: list[int] = []
    for number, (row, fix) in enumerate(zip(rows, fixes, strict=True)):
        before = [token for each in rows[:number] for token in each]
        if (fix.variant is None and number) or (fix.variant and list(fix.variant.before) != before):
            selected += (start + fix.tokens).tolist()
        start += len(row)
    behind = [fix.variant and list(fix.variant.before) for fix in fixes]
    return sorted(selected), behind if any(behind) else None


def note(variants: Variants, rows: list[list[int]], found: list[Masses]) -> None:
    keys = [str(row).encode() for row in rows]
    context = np.array([token for row in rows for token in row])
    variants.note(keys, context, list(map(len, rows)), found)


def test_a_flat_prompt_tells_what_its_rows_gave_each_other(
    served: Served, oracle: FusedOracle, rng: random.Random, seen: Seen
) -> None:
    system, rows = random_tokens(rng, 5), make_rows(rng, 4)
    prompt = make_prompt(rng, system, rows)
    result, report = ask(served, prompt, pin=False)
    assert report["see"] == "flat" and report["variants"] == 0 and "depcache_masses" not in report
    served.judge(plain(prompt.tokens), result)
    assert seen.variants is not None
    known = [variants[-1] for variants in list(seen.variants._rows.values())[-3:]]
    expected = masses_of(oracle, prompt)[1:]
    for number, (variant, masses) in enumerate(zip(known, expected, strict=True), start=1):
        assert variant.before == tuple(token for row in rows[:number] for token in row)
        assert list(variant.inter.values()) == pytest.approx(masses.inter, abs=1e-5)
        assert variant.order.tolist() == masses.order


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_other_prompts_read_its_rows_and_equal_the_oracle(
    served: Served, oracle: FusedOracle, rng: random.Random, seen: Seen, alpha: float
) -> None:
    num_variants = num_fused = 0
    for _ in range(6):
        system, rows = random_tokens(rng, 5), make_rows(rng, 6)
        expected = Variants()
        for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0]):
            past = [rows[number] for number in order]
            prompt = make_prompt(rng, system, past)
            _, report = ask(served, prompt, alpha=10)  # all of it would be computed again
            assert report["see"] == "flat"
            note(expected, past, masses_of(oracle, prompt))
        now = [rows[number] for number in rng.sample(range(6), 4)]
        prompt = make_prompt(rng, system, now)
        result, report = ask(served, prompt, alpha=alpha)
        chosen, behind = expect(expected, now, len(system), alpha)
        assert (seen.selected, seen.behind) == (chosen, behind)
        if report["see"] == "flat":
            continue
        num_fused += 1
        assert report["variants"] == sum(map(bool, behind or []))
        assert report["recomputed"] == len(chosen) and report["missed"] == 0
        assert report["recompute"] == pytest.approx(len(chosen) / sum(map(len, now)), abs=1e-4)
        assert error_of(oracle, prompt, chosen, result, behind) < ORACLE_LOGPROB
        num_variants += report["variants"]
    assert num_fused >= 3 and num_variants >= 3


def test_out_of_focus_nothing_of_a_copy_is_computed_again(
    served: Served,
    oracle: FusedOracle,
    rng: random.Random,
    seen: Seen,
    told: list[dict[str, Any]],
) -> None:
    num_variants = num_dropped = num_fused = 0
    for _ in range(8):
        system, rows = random_tokens(rng, 5), make_rows(rng, 6)
        ask(served, make_prompt(rng, system, rows), alpha=10)
        now = [rows[number] for number in sorted(rng.sample(range(6), 4))]
        prompt = make_prompt(rng, system, now)
        told.clear()
        result, report = ask(served, prompt, focus="settle")
        if report["see"] == "flat" or not seen.selected:
            assert not any("chosen" in each for each in told)
            continue
        num_fused += 1
        in_focus = oracle.choose_in_focus(prompt, seen.selected, behind=seen.behind)
        assert told[-1]["chosen"] == in_focus
        assert report["recomputed"] == len(in_focus) and report["missed"] == 0
        assert report["recompute"] == pytest.approx(len(in_focus) / sum(map(len, now)), abs=1e-4)
        assert error_of(oracle, prompt, in_focus, result, seen.behind) < ORACLE_LOGPROB
        num_variants += report["variants"]
        num_dropped += len(seen.selected) - len(in_focus)
    assert num_fused >= 4 and num_variants >= 3 and num_dropped > 0


def test_a_long_prompt_leaves_its_first_rows_alone(
    served: Served, rng: random.Random, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "MAX_ROWS_OF_PROMPT", 3)
    system, rows = random_tokens(rng, 5), make_rows(rng, 5)
    prompt = make_prompt(rng, system, rows)
    result, report = ask(served, prompt, alpha=10)
    assert report["see"] == "flat"
    served.judge(plain(prompt.tokens), result)
    assert seen.variants is not None
    num_known = len(seen.variants)
    assert [each[-1].start for each in list(seen.variants._rows.values())[-2:]] == [
        len(rows[0]),
        len(rows[0]) + len(rows[1]),
    ]
    monkeypatch.setattr(copies_module, "MAX_TOKENS", 4)
    ask(served, make_prompt(rng, system, make_rows(rng, 3)), alpha=10)
    assert len(seen.variants) == num_known


def test_a_copy_that_left_the_device_is_forgotten(
    served: Served, oracle: FusedOracle, rng: random.Random, seen: Seen
) -> None:
    system, rows = random_tokens(rng, 5), make_rows(rng, 4)
    ask(served, make_prompt(rng, system, rows), alpha=10)
    other = make_prompt(rng, system, [rows[0], rows[2], rows[3]])
    _, report = ask(served, other, alpha=0.4)
    assert report["variants"] > 0
    served.engine.flush()
    result, report = ask(served, other, alpha=0.4)
    assert report["variants"] == 0 and seen.behind is None and report["settled"] > 0
    assert error_of(oracle, other, seen.selected, result, None) < ORACLE_LOGPROB


def test_the_same_rows_in_the_same_order_are_a_prefix(
    served: Served, rng: random.Random, seen: Seen
) -> None:
    system, rows = random_tokens(rng, 5), make_rows(rng, 4)
    ask(served, make_prompt(rng, system, rows), alpha=10)
    again = make_prompt(rng, system, rows[:3])
    result, report = ask(served, again)
    assert seen.behind is not None and seen.selected == []
    assert report["see"] == "flat" and report["missed"] == report["recomputed"] == 0
    served.judge(plain(again.tokens), result)
