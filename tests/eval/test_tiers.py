# SPDX-License-Identifier: Apache-2.0
"""`python -m eval tiers`: its arithmetic, and its phases against a server that only counts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import ConfigError
from depcache.prompt.recompute import Recompute
from depcache.prompt.tokenization import PromptTokenizer
from eval.__main__ import main
from eval.tiers.figures import make_movement, make_rows, make_table, quartiles
from eval.tiers.hidden import AT_ONCE, BETWEEN, make_hidden_table, measure_hidden, num_hidden_steps
from eval.tiers.phases import (
    COLD,
    DEVICE,
    DISK,
    HOST,
    KEPT,
    Answered,
    Measurement,
    measure,
    num_steps,
)
from eval.tiers.prompts import TierPrompt, make_prompts
from eval.workloads.graphs import SAMPLE, open_graph

BYTES_PER_TOKEN = 10
TTFT_MS = {COLD: 100.0, DEVICE: 10.0, HOST: 20.0, DISK: 40.0}
TASK = 7


class FakeServer:
    """Knows where each version of each prompt is; the disk outlives it."""

    start_s = 1.5

    def __init__(self, disk: set[tuple[int, int]], log: list[Any], *, loads: bool = True) -> None:
        self.disk, self.log, self.loads = disk, log, loads
        self.device: set[tuple[int, int]] = set()
        self.host: set[tuple[int, int]] = set()

    def ask(
        self, prompt: TierPrompt, version: int, *, recompute: Recompute | None = None
    ) -> Answered:
        key = (prompt.number, version)
        tier = COLD
        for name, held in ((DISK, self.disk), (HOST, self.host), (DEVICE, self.device)):
            if key in held and (self.loads or name == DEVICE):
                tier = name
        self.device.add(key)
        self.log.append((tier, *key))
        context = prompt.num_tokens
        missed = context if tier == COLD else 0
        loaded = context if tier in (HOST, DISK) else 0
        return Answered(
            ttft_ms=TTFT_MS[tier] + prompt.number,
            prompt_tokens=context + TASK,
            context_tokens=context,
            shared=context - missed - loaded,
            loaded=loaded,
            missed=missed,
            cached_tokens=context - missed,
        )

    def prefetch(self, prompt: TierPrompt, version: int) -> dict[str, Any]:
        self.host.add((prompt.number, version))
        num_tokens = prompt.num_tokens
        return {"tokens": num_tokens, "bytes": num_tokens * BYTES_PER_TOKEN, "ms": 4.0}

    def persist(self) -> dict[str, Any]:
        self.disk |= self.device
        return {"tokens": 500, "bytes": 5000, "seconds": 0.5}

    def forget(self) -> None:
        self.device.clear()
        self.host.clear()

    def stats(self) -> dict[str, Any]:
        counters = dict.fromkeys(("inserted", "loaded", "recomputed"), 0)
        disk = {"bytes": 5000, "nodes": 9, "tokens": 500, "failures": {}, "dropped_nodes": {}}
        # Each request waits for a quarter of what is on its way for it.
        disk |= {"fetch_seconds": 0.4 * len(self.log), "wait_seconds": 0.1 * len(self.log)}
        return {"measured": {}, "tiers": {"disk": disk | counters}}


def prompt(number: int, size: int = 100) -> TierPrompt:
    return TierPrompt(number, size, size - 1, (("a", "r", "b"),), "a?")


def run_fake(**options: Any) -> tuple[Any, list[list[Any]]]:
    disk: set[tuple[int, int]] = set()
    logs: list[list[Any]] = []

    @contextmanager
    def start() -> Iterator[FakeServer]:
        logs.append([])
        yield FakeServer(disk, logs[-1], **options)

    prompts = [prompt(0), prompt(1, 200), prompt(2), prompt(3, 200)]
    return measure(start, prompts, [prompt(8)]), logs


def test_every_phase_finds_its_kv_where_its_name_says() -> None:
    run, _ = run_fake()
    assert all(sample.is_as_named for sample in run.samples)
    assert {(s.phase, s.stretch) for s in run.samples} == {
        (phase, stretch) for stretch in (DEVICE, HOST, DISK) for phase in (COLD, stretch)
    }


def test_what_is_hidden_is_told_by_kind_and_number_at_once() -> None:
    log: list[Any] = []
    steps: list[str] = []
    prompts = [prompt(0), prompt(1), prompt(2)]
    rows = measure_hidden(FakeServer(set(), log), prompts, rounds=2, on_step=steps.append)
    kinds = ("trees", BETWEEN, "fused")
    assert [(row["kind"], row["at_once"]) for row in rows] == list(product(kinds, AT_ONCE))
    assert len(steps) == num_hidden_steps(len(prompts), rounds=2)
    assert [version for *_, version in log[: 2 * len(prompts)]] == [KEPT] * 2 * len(prompts)
    turns = log[2 * len(prompts) :]
    assert {tier for tier, _, version in turns if version == KEPT} == {DISK}
    fresh = [each for each in turns if each[2] != KEPT]
    assert {tier for tier, *_ in fresh} == {COLD}
    assert len(set(fresh)) == len(fresh) == 2 * len(AT_ONCE) * len(prompts)
    for row in rows:
        asked = 12 if row["kind"] == BETWEEN else 6  # the server counts what it waits for each
        assert row["requests"] == 6
        assert row["fetch_s"] == pytest.approx(0.4 * asked)
        assert row["wait_s"] == pytest.approx(0.1 * asked)
        assert row["hidden"] == 0.75
        assert row["ttft_ms"] == TTFT_MS[DISK] + 1
    assert make_hidden_table(rows).row_count == len(rows)


def test_warm_and_cold_take_turns_and_no_prompt_comes_twice_in_a_phase() -> None:
    run, _ = run_fake()
    phases = [sample.phase for sample in run.samples]
    assert all(COLD in phases[i : i + 2] for i in range(0, len(phases), 2))
    assert all(phases[i] != phases[i + 1] for i in range(0, len(phases), 2))
    asked = [(s.phase, s.stretch, s.prompt.number) for s in run.samples]
    assert len(set(asked)) == len(asked) == 4 * 6
    numbers = {
        group: [n for *g, n in asked if tuple(g) == group]
        for *group, _ in asked
        for group in [tuple(group)]
    }
    assert set(map(tuple, numbers.values())) == {(0, 1, 2, 3)}


def test_other_prompts_come_before_those_that_are_measured() -> None:
    run, logs = run_fake()
    assert [len(log) for log in logs] == [2 * 2 * 5, 2 * 5]
    assert sum(map(len, logs)) == num_steps(num_prompts=4, num_warm_ups=1)
    for log, starts in ((logs[0], (0, 10)), (logs[1], (0,))):
        for start in starts:
            assert [number for _, number, _ in log[start : start + 4]] == [8, 8, 0, 0]
    assert all(sample.prompt.number != 8 for sample in run.samples)


def test_a_phase_that_computed_instead_of_loading_is_seen() -> None:
    run, _ = run_fake(loads=False)
    rows = make_rows("faster", run, BYTES_PER_TOKEN)
    for row in rows:
        assert row["as_named"] == (0 if row["phase"] in (HOST, DISK) else 2)
        if row["phase"] in (HOST, DISK):
            assert row["loaded_tokens"] == 0
            assert row["computed_tokens"] == row["size"] - 1 + TASK


def test_rows_pair_each_prompt_with_itself() -> None:
    run, _ = run_fake()
    rows = {(r["size"], r["phase"], r["beside"]): r for r in make_rows("x", run, BYTES_PER_TOKEN)}
    assert len(rows) == 2 * 6
    row = rows[200, DISK, DISK]  # prompts 1 and 3
    assert row["ttft_ms"] == 42.0
    assert row["speedup"] == round(statistics.median([101 / 41, 103 / 43]), 2)
    assert row["above_device_ms"] == 30.0
    assert row["bytes_per_s"] == round(199 * BYTES_PER_TOKEN / 0.030)
    assert (row["loaded_tokens"], row["computed_tokens"], row["as_named"]) == (199, TASK, 2)
    assert rows[100, DEVICE, DEVICE]["bytes_per_s"] == 0
    assert make_table("x", list(rows.values())).row_count == 12


def test_movement_adds_up_what_was_fetched() -> None:
    run, _ = run_fake()
    movement = make_movement("x", run)
    assert movement["disk_write_bytes_per_s"] == 10_000
    assert movement["disk_read_bytes_per_s"] == round(2 * (99 + 199) * BYTES_PER_TOKEN / 0.016)
    assert movement["fetch_ms"] == {"100": 4.0, "200": 4.0}
    assert json.dumps(movement)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, 0, 0)),
        ([3.0], (3, 3, 3)),
        ([4, 1, 2, 3, 5], (2, 3, 4)),
        ([1, 2], (1.25, 1.5, 1.75)),
    ],
)
def test_quartiles_are_numpys(values: list[float], expected: tuple[float, ...]) -> None:
    assert quartiles(values) == pytest.approx(expected)


def test_a_cold_prompt_may_share_what_all_chats_begin_with() -> None:
    def cold(shared: int) -> Measurement:
        answered = Answered(1.0, 100, 90, shared, 0, 90 - shared, shared)
        return Measurement(COLD, HOST, prompt(0), answered)

    assert cold(9).is_as_named
    assert not cold(60).is_as_named


def encode(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def test_prompts_have_about_the_tokens_that_are_wanted_and_are_always_the_same() -> None:
    def make() -> list[TierPrompt]:
        with open_graph(None, SAMPLE) as store:
            return make_prompts(store, PromptTokenizer(encode), [1000, 3000], 3)

    made = make()
    assert [p.size for p in made] == [1000, 3000] * 3
    assert all(0.85 * p.size <= p.num_tokens <= p.size for p in made)
    assert len({p.paths for p in made}) == 6
    assert made == make()


def test_two_versions_differ_before_any_fact() -> None:
    first, second = (prompt(3).render(version).messages for version in (1, 2))
    assert first[1] == second[1]
    assert first[0] != second[0]
    start = next(
        i
        for i, (a, b) in enumerate(zip(*(m[0]["content"] for m in (first, second)), strict=True))
        if a != b
    )
    assert start < 4


def test_options_that_make_no_sense_are_refused() -> None:
    assert main(["tiers", "--hidden", "--rounds", "0"]) == 2
    assert main(["tiers", "--hidden", "--load-policies", "faster"]) == 2


def test_a_graph_without_its_folder_is_an_error_that_names_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="--data"):
        open_graph(None, "metaqa")
    with pytest.raises(SystemExit):
        main(["tiers", "--load-policies", "sometimes"])
    assert "sometimes" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.sglang
def test_quick_loads_from_every_tier_of_a_real_server(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["tiers", "--quick", "--json", str(out), "--load-policies", "always"]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert len(report["rows"]) == 3 * 6
    assert all(row["as_named"] == row["prompts"] == 5 for row in report["rows"])
    for row in report["rows"]:
        assert (row["loaded_tokens"] > 0.8 * row["size"]) == (row["phase"] in (HOST, DISK))
    (movement,) = report["movements"]
    assert movement["disk_bytes"] > movement["disk_tokens"] * report["settings"]["bytes_per_token"]
    assert not any(c["failures"] for c in movement["disk_counters"].values())
