# SPDX-License-Identifier: Apache-2.0
"""The simulator on small graphs and traces, against counts made in another way."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("tokenizers", reason="needs the extra `server`")

from depcache.errors import ConfigError
from depcache.plan.segments import SegmentTable
from eval.__main__ import main
from eval.policy.graph import write_made_graph
from eval.policy.orders import ORDERS
from eval.policy.policies import OFFLINE, POLICIES, looks_ahead
from eval.policy.prepared import Prepared, count_working_set, read_prepared
from eval.policy.replay import Outcome, Replay, ReplaySettings
from eval.policy.report import make_summary
from eval.policy.slots import SimulatedSlots
from eval.policy.workloads import PolicySpec, Source
from tests.eval.tables.made import write_set

NUM_REQUESTS = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("policy")
    graph = write_made_graph(folder / "graph.tsv", num_films=60)
    return Source(graph, None, folder / "cache")


@pytest.fixture(scope="module")
def tables(source: Source) -> list[SegmentTable]:
    return read_prepared(source.prepare(PolicySpec("zipfian", 60, NUM_REQUESTS))).tables()


def paths_of(table: SegmentTable) -> set[tuple[int, ...]]:
    """The way from the root to every context token; the system, segment 0, is left out."""
    ends: list[tuple[int, ...]] = []
    paths: set[tuple[int, ...]] = set()
    for segment, (start, stop) in enumerate(zip(table.starts, table.stops, strict=True)):
        parent = table.parents[segment]
        path = ends[parent] if parent >= 0 else ()
        for token in table.tokens[start:stop]:
            path = (*path, token)
            if segment:
                paths.add(path)
        ends.append(path)
    return paths


def replay(tables: list[SegmentTable], **settings: object) -> Outcome:
    simulated = Replay(tables, ReplaySettings(**settings))  # type: ignore[arg-type]
    outcome = simulated.run()
    simulated.check()
    assert simulated.tree.num_locked == 0
    return outcome


def test_without_bounds_every_token_is_missed_once(tables: list[SegmentTable]) -> None:
    seen: set[tuple[int, ...]] = set()
    num_hits = num_tokens = 0
    for number, table in enumerate(tables):
        paths = paths_of(table)
        if number >= NUM_REQUESTS // 4:
            num_hits += len(paths & seen)
            num_tokens += len(paths)
        seen |= paths
    outcome = replay(tables, capacity=10**6, warmup=0.25)
    assert (outcome.hit_tokens, outcome.context_tokens) == (num_hits, num_tokens)
    assert outcome.num_requests == NUM_REQUESTS - NUM_REQUESTS // 4
    assert outcome.evicted_tokens == 0
    assert count_working_set(tables) == len(seen)


@pytest.mark.parametrize("scheduler", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_slot_is_lost_and_the_same_run_gives_the_same_figures(
    tables: list[SegmentTable], policy: str, scheduler: str
) -> None:
    capacity = 3 * max(table.task_start for table in tables)
    outcomes: list[Outcome] = []
    for _ in range(2):
        simulated = Replay(
            tables,
            ReplaySettings(
                capacity, policy, scheduler, queue_depth=8, num_running=2, private_tokens=7
            ),
        )
        for _ in tables:
            simulated.step()
            simulated.check()
        assert simulated.tree.counters.evicted > 0
        outcomes.append(
            replay(
                tables,
                capacity=capacity,
                policy=policy,
                scheduler=scheduler,
                queue_depth=8,
                num_running=2,
            )
        )
    first, second = outcomes
    assert (first.hit_tokens, first.context_tokens) == (second.hit_tokens, second.context_tokens)
    assert 0 < first.hit_rate < 1


@pytest.mark.parametrize("policy", [p for p in POLICIES if p == OFFLINE])
def test_the_bound_grows_with_the_capacity_and_is_above_all(
    tables: list[SegmentTable], policy: str
) -> None:
    needed = max(table.task_start for table in tables) + 80
    before = 0.0
    for capacity in (needed, 2 * needed, 4 * needed, 8 * needed):
        bound = replay(tables, capacity=capacity, policy=policy).hit_rate
        # Segments are of different sizes and leaves go first, so it is no exact optimum.
        assert bound >= before - 0.01
        before = bound
        for other in POLICIES:
            assert replay(tables, capacity=capacity, policy=other).hit_rate <= bound + 0.02


@pytest.mark.parametrize("policy", [p for p in POLICIES if not looks_ahead(p)])
def test_the_queue_does_not_matter_to_a_policy_that_does_not_look_at_it(
    tables: list[SegmentTable], policy: str
) -> None:
    capacity = 3 * max(table.task_start for table in tables)
    rates = {
        replay(tables, capacity=capacity, policy=policy, queue_depth=depth).hit_tokens
        for depth in (1, 5, 64)
    }
    assert len(rates) == 1


def test_what_cannot_run_is_refused(tables: list[SegmentTable]) -> None:
    with pytest.raises(ConfigError, match="holds no request"):
        Replay(tables, ReplaySettings(capacity=100))
    for wrong in ({"queue_depth": 0}, {"num_running": 0}, {"warmup": 1.0}):
        with pytest.raises(ConfigError, match="choose at least 1"):
            Replay(tables, ReplaySettings(capacity=10**6, **wrong))


def test_workloads_repeat_by_their_seed_and_are_kept(source: Source) -> None:
    path = source.prepare(PolicySpec("temporal", 80, 10, seed=1))
    other = source.prepare(PolicySpec("temporal", 80, 10, seed=2))
    before = read_prepared(path)
    assert source.prepare(PolicySpec("temporal", 80, 10, seed=1)) == path != other
    path.unlink()
    source.prepare(PolicySpec("temporal", 80, 10, seed=1))
    again = read_prepared(path)
    for name in Prepared.__slots__:
        assert np.array_equal(getattr(before, name), getattr(again, name))
    assert not np.array_equal(before.tokens[:500], read_prepared(other).tokens[:500])


def test_a_trace_is_the_trees_of_its_chunks(tmp_path: Path) -> None:
    requests = [{"id": "0", "chunks": [0, 1]}, {"id": "1", "chunks": [1, 2]}]
    chunks = [
        {"cid": 0, "text": "Oslo is the capital of Norway."},
        {"cid": 1, "text": "Bergen lies by the sea."},
        {"cid": 2, "words": 30, "sha1": "8925527bde38f111"},
    ]
    (tmp_path / "retrieval_x_requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    text = "\n".join(map(json.dumps, chunks)).encode()
    (tmp_path / "retrieval_x_chunks.jsonl.gz").write_bytes(gzip.compress(text))
    source = Source(tmp_path / "none.tsv", tmp_path, tmp_path / "cache")
    first, second = read_prepared(source.prepare(PolicySpec("chunks_x", 0, 700))).tables()
    shared = paths_of(first) & paths_of(second)
    outcome = replay([first, second], capacity=1000, warmup=0.0)
    assert 0 < outcome.hit_tokens == len(shared)
    # 30 words without a text become 40 tokens; two of three trees are in each request.
    assert len(paths_of(second) - shared) == 40


def test_slots_are_given_once() -> None:
    slots = SimulatedSlots(10)
    taken = slots.take(7)
    assert slots.num_free == 3
    with pytest.raises(ValueError, match="3 are free"):
        slots.take(4)
    slots.give([taken[:2], taken[2:]])
    assert sorted(slots.take(10).tolist()) == list(range(10))
    with pytest.raises(ValueError, match="only 10 exist"):
        slots.give([np.arange(11)])


def test_the_command_writes_rows_and_gains(tmp_path: Path) -> None:
    write_made_graph(tmp_path / "kg" / "films" / "triples.tsv", num_films=100)
    out = tmp_path / "out.json"
    arguments = ["policy", "--quick", "--json", str(out), "--data", str(tmp_path / "kg")]
    arguments += ["--graph", "films", "--requests", "16", "--pool", "40", "--jobs", "1"]
    arguments += ["--seeds", "0", "1", "--capacity-gb", "0.5", "1", "--cache", str(tmp_path / "c")]
    arguments += ["--workloads", "uniform", "temporal"]
    arguments += ["--depths", "8", "2", "--plot", str(tmp_path / "plot.png")]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    keys = {"workload", "capacity_gb", "capacity_share", "policy", "scheduler", "hit_rate"}
    for row in report["rows"]:
        assert keys | {"queue_depth", "seeds", "spread"} <= set(row)
        assert row["seeds"] == [0, 1] and 0 <= row["hit_rate"] <= 1
    fcfs = [row for row in report["rows"] if row["scheduler"] == "fcfs"]
    # Two workloads at two capacities; a queue of two matters only to what looks at it.
    num_looking = sum(map(looks_ahead, POLICIES))
    assert len(fcfs) == 4 * (len(POLICIES) + num_looking)
    assert {row["scheduler"] for row in report["rows"]} == set(ORDERS)
    assert set(report["gain_points"]) == {"lru", "lfu", "pgdsf"}
    assert "belady_gap_points" in report
    assert report["left_out"] == []
    assert len(report["workloads"]) == 4


def test_a_capacity_that_holds_no_request_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write_made_graph(tmp_path / "kg" / "films" / "triples.tsv", num_films=100)
    out = tmp_path / "out.json"
    arguments = ["policy", "--quick", "--json", str(out), "--data", str(tmp_path / "kg")]
    arguments += ["--graph", "films", "--requests", "20", "--share-pool", "60", "--jobs", "1"]
    arguments += ["--workloads", "uniform", "--policies", "lru", "--schedulers", "fcfs"]
    arguments += ["--capacity-gb", "--capacity-share", "0.001", "0.5"]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert [row["capacity_share"] for row in report["rows"]] == [0.5]
    assert len(report["left_out"]) == 1 and "a request takes up to" in report["left_out"][0]


def test_wrong_calls_are_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["--policies", "magic"], "does not exist"),
        (["--workloads", "poisson", "--data", str(tmp_path)], "no triples.tsv"),
        (["--capacity-gb", "--quick"], "no capacity"),
    ):
        assert main(["policy", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_gains_are_means_over_cells_and_losses_are_named() -> None:
    def row(policy: str, gb: float, hit_rate: float, depth: int = 64) -> dict:
        return {
            "workload": "uniform",
            "pool": 9,
            "capacity_gb": gb,
            "capacity_share": None,
            "policy": policy,
            "scheduler": "fcfs",
            "queue_depth": depth,
            "hit_rate": hit_rate,
        }

    rows = [row("lru", 4, 0.2), row("lru", 8, 0.3), row("belady", 4, 0.5), row("belady", 8, 0.6)]
    rows += [row("lacr", 4, 0.3), row("lacr", 8, 0.5), row("lacr", 4, 0.1, depth=1)]
    summary = make_summary(rows, 64)
    assert summary["gain_points"] == {"lru": 15.0, "lfu": None, "pgdsf": None}
    assert summary["belady_gap_points"] == 15.0
    assert summary["below_baseline"] == ["uniform 4 GB, queue of 1: lru by 10.00"]


def test_a_report_about_tables_alone_says_nothing_of_a_graph(tmp_path: Path) -> None:
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    file = tmp_path / "report.json"
    asked = ["policy", "--quick", "--tables", str(tmp_path), "--policies", "lru", "--jobs", "1"]
    asked += ["--capacity-gb", "4", "--depths", "4", "--json", str(file), "--workloads"]
    assert main([*asked, "lake:sql:6"]) == 0
    report = json.loads(file.read_text())
    assert report["notes"] == [] and report["rows"]
    assert main([*asked, "lake:sql:6", "uniform", "--requests", "60", "--pool", "60"]) == 0
    assert "made up" in json.loads(file.read_text())["notes"][0]
