# SPDX-License-Identifier: Apache-2.0
"""Precomputation against a server in memory: what is sent, kept, resumed and left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import ConfigError, ServerError
from depcache.graph.networkx_store import NetworkXStore
from depcache.graph.retrieval import Retriever
from depcache.precompute import PrecomputeReport, PrecomputeSettings
from tests.depcache.precompute.fake import SYSTEM_LEN, FakeCache, beginnings, refused
from tests.depcache.precompute.make import NONE, TRIPLES, WORDS, compute, planned


def test_what_is_precomputed_is_what_a_question_retrieves(store) -> None:
    server = FakeCache()
    report = compute(server, store, num_workers=3)
    assert report.num_computed == report.num_wanted == 24
    assert report.num_failed == 0
    assert report.num_missed == len(server.cached) - 1 + SYSTEM_LEN * (report.num_requests > 0)
    retriever = Retriever(store, pruner="none")
    for entity in store.names():
        found = retriever.retrieve("anything", entities=[entity])
        assert server.has_entity(list(found.paths))


@pytest.mark.parametrize("question", ["who knows r1?", "r0 r2 e5"])
def test_whatever_a_pruner_picks_by_the_question_is_part_of_it(store, question) -> None:
    server = FakeCache()
    compute(server, store, settings=WORDS)
    retriever = Retriever(store, pruner="words")
    for entity in store.names():
        found = retriever.retrieve(question, entities=[entity], num_paths=3)
        assert found.paths and server.has_entity(list(found.paths))


def test_the_limit_of_paths_is_that_of_ask_only_where_the_question_does_not_count() -> None:
    assert (NONE.max_paths, WORDS.max_paths) == (30, 10_000)
    assert PrecomputeSettings(pruner="words", num_paths=7).max_paths == 7


def test_requests_stay_within_their_bound_and_are_shared_by_entities(store) -> None:
    server = FakeCache()
    report = compute(server, store, settings=WORDS)
    assert report.num_requests == len(server.sent) > 3
    assert max(len(beginnings(paths)) for paths in server.sent) <= 60
    assert any(len({path[0] for path in paths}) > 1 for paths in server.sent)


def test_the_most_connected_entities_come_first(store) -> None:
    server = FakeCache()
    compute(server, store, "top:5", request_tokens=1)
    order = list(dict.fromkeys(path[0] for paths in server.sent for path in paths))
    assert order == store.names_by_degree(5)


# resuming


@settings(max_examples=40)
@given(
    stops=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["gone", "key"])), max_size=4),
    torn=st.lists(st.integers(0, 60), max_size=4),
    request_tokens=st.sampled_from([1, 40, 70]),
    num_workers=st.integers(1, 3),
)
def test_wherever_a_run_is_broken_off_the_next_repeats_and_skips_nothing(
    tmp_path_factory, stops, torn, request_tokens, num_workers
) -> None:
    store = NetworkXStore()
    store.upsert(TRIPLES)
    state = tmp_path_factory.mktemp("state") / "state.jsonl"
    server = FakeCache()

    def run() -> PrecomputeReport:
        return compute(
            server, store, num_workers=num_workers, state=state, request_tokens=request_tokens
        )

    for (after, how), cut in zip(stops, [*torn, *[0] * 4], strict=False):
        done = set(_done(state))
        num_sent = len(server.sent)
        server.on_chat = _fail_after(after, how)
        try:
            run()
        except (ServerError, KeyboardInterrupt):
            pass
        # What was done is not sent again, and what was sent wholly is done.
        assert not done & {path[0] for paths in server.sent[num_sent:] for path in paths}
        assert done <= set(_done(state))
        for entity in _done(state):
            assert server.has_entity(NONE.find_paths(store, entity) or [])
        if cut and state.exists():  # killed while it wrote
            content = state.read_bytes()
            state.write_bytes(content[: max(0, len(content) - cut)])
    server.on_chat = lambda paths: None
    done = set(_done(state))
    num_sent = len(server.sent)
    report = run()
    sent = {path[0] for paths in server.sent[num_sent:] for path in paths}
    assert report.num_resumed == len(done)
    assert sent == set(store.names()) - done
    assert Counter(_done(state)) == Counter(store.names())
    again = run()
    assert (again.num_requests, again.num_resumed) == (0, 24)


def _done(state: Path) -> list[str]:
    """The entities in whole lines of a state whose first line is whole."""
    lines = state.read_text().split("\n") if state.exists() else []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row["entity"] for row in rows if "entity" in row]


def _fail_after(count: int, how: str) -> Callable[[object], None]:
    left = [count]

    def fail(paths: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise httpx.ConnectError("refused") if how == "gone" else KeyboardInterrupt

    return fail


def test_a_server_that_goes_away_is_one_sentence_and_what_is_done_stays(store, tmp_path) -> None:
    server = FakeCache()
    server.on_chat = _fail_after(3, "gone")
    with pytest.raises(ServerError, match=r"of 24 entities are done, the same command") as caught:
        compute(server, store, state=tmp_path / "state")
    assert "\n" not in str(caught.value)
    server.on_chat = lambda paths: None
    report = compute(server, store, state=tmp_path / "state")
    assert report.num_resumed > 0
    assert report.num_resumed + report.num_computed == 24


def test_more_entities_go_on_from_the_same_state(store, tmp_path) -> None:
    server = FakeCache()
    assert compute(server, store, "top:4", state=tmp_path / "state").num_computed == 4
    report = compute(server, store, "top:9", state=tmp_path / "state")
    assert (report.num_resumed, report.num_computed) == (4, 5)


def test_another_system_or_model_starts_anew_and_says_why(store, tmp_path) -> None:
    server = FakeCache()
    state = tmp_path / "state"
    compute(server, store, state=state)
    before = state.read_bytes()
    other = PrecomputeSettings(pruner="none", system="Be brief.", layout="staggered")
    with planned(server, store, state, other) as (_, plan):
        assert len(plan.pending) == 24
        assert "anew: layout, system not the same as before" in plan.notes[0]
    server.model = "model-b"
    with planned(server, store, state) as (job, plan):
        assert "anew: model not the same as before" in plan.notes[0]
        assert state.read_bytes() == before  # a plan changes nothing
        assert job.run(plan).num_computed == 24
    with planned(server, store, state) as (_, plan):
        assert plan.pending == () and plan.notes == ()


def test_a_server_that_forgot_everything_is_filled_again(store, tmp_path) -> None:
    compute(FakeCache(), store, state=tmp_path / "state")
    restarted = FakeCache()
    with planned(restarted, store, tmp_path / "state") as (job, plan):
        assert "the server holds 0% of what was done" in plan.notes[0]
        assert job.run(plan).num_computed == 24
    assert len(_done(tmp_path / "state")) == 24


def test_a_server_that_forgot_is_noticed_though_little_was_done_or_the_graph_changed(
    store, tmp_path
) -> None:
    store.upsert([(f"many{i}", "r", f"more{i}") for i in range(300)])
    compute(FakeCache(), store, "top:2", state=tmp_path / "state")
    with planned(FakeCache(), store, tmp_path / "state") as (_, plan):
        assert "starting anew: the server holds 0%" in plan.notes[0]
    store.upsert([("many7", "new", "more9")])
    with planned(FakeCache(), store, tmp_path / "state") as (job, plan):
        assert "starting anew: the server holds 0%" in plan.notes[0]
        assert job.run(plan).num_computed == 624


def test_a_server_that_forgot_some_says_so(store, tmp_path) -> None:
    server = FakeCache()
    compute(server, store, state=tmp_path / "state")
    gone = {f"e{i}" for i in range(1, 24, 4)}
    server.cached = {path for path in server.cached if not set(path[:1]) & gone}
    with planned(server, store, tmp_path / "state") as (_, plan):
        assert "has evicted the rest" in plan.notes[0]
        assert plan.pending == ()


def test_of_a_changed_graph_only_what_changed_is_computed_again(store, tmp_path) -> None:
    server = FakeCache()
    compute(server, store, state=tmp_path / "state")
    change = store.upsert([("e20", "new", "e21")])
    affected = store.find_affected(change.entities, NONE.num_hops)
    assert 2 <= len(affected) < 24
    num_sent = len(server.sent)
    with planned(server, store, tmp_path / "state") as (job, plan):
        assert "has changed" in plan.notes[0]
        report = job.run(plan)
    sent = {path[0] for paths in server.sent[num_sent:] for path in paths}
    assert sent <= affected and {"e20", "e21"} <= sent
    assert report.num_computed == len(sent)
    assert report.num_unchanged == 24 - len(sent)
    with planned(server, store, tmp_path / "state") as (_, plan):
        assert plan.pending == ()


@pytest.mark.parametrize("content", ['{"chunk": 1}\n', "a\tb\tc\n", "some text"])
def test_a_file_that_is_no_state_is_never_overwritten(store, tmp_path, content) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text(content)
    with pytest.raises(ConfigError, match="no state of a precomputation"):
        compute(FakeCache(), store, state=file)
    assert file.read_text() == content


# single entities that cannot be computed


def test_one_refused_entity_is_named_and_the_others_are_computed(store, tmp_path) -> None:
    server = FakeCache()

    def refuse(paths):
        return refused("bad name") if any(path[0] == "e5" for path in paths) else None

    server.on_chat = refuse
    report = compute(server, store, state=tmp_path / "state", settings=WORDS)
    assert report.failures == {"refused": 1}
    assert report.problems[0].startswith("e5: ") and "bad name" in report.problems[0]
    assert report.num_computed == 23
    assert "e5" not in _done(tmp_path / "state")
    server.on_chat = lambda paths: None
    again = compute(server, store, state=tmp_path / "state", settings=WORDS)
    assert (again.num_resumed, again.num_computed) == (23, 1)


def test_requests_that_are_too_long_are_cut_until_they_fit(store) -> None:
    server = FakeCache()
    server.on_chat = lambda paths: refused() if len(beginnings(paths)) > 12 else None
    report = compute(server, store, settings=WORDS, num_workers=2)
    assert report.num_failed == 0 and report.num_computed == 24
    assert max(len(beginnings(paths)) for paths in server.sent) <= 12


def test_entities_without_paths_and_unknown_ones_are_counted(store, tmp_path) -> None:
    store.upsert([("alone", "is", "alone")])
    names = tmp_path / "names.txt"
    names.write_text("e1\r\nnobody\n\nalone\ne1\nno\0name\n", newline="")
    report = compute(FakeCache(), store, f"file:{names}")
    assert report.num_wanted == 4 and report.num_computed == 1
    assert report.failures == {"unknown": 2, "no paths": 1}


def test_one_entity_that_breaks_the_server_is_left_out(store) -> None:
    server = FakeCache()

    def fail(paths):
        is_bad = any(path[0] == "e5" for path in paths)
        return httpx.Response(500, json={"message": "oops"}) if is_bad else None

    server.on_chat = fail
    report = compute(server, store)
    assert report.failures == {"failed": 1} and report.num_computed == 23


def test_a_server_that_always_fails_ends_the_run(store) -> None:
    server = FakeCache()
    server.on_chat = lambda paths: httpx.Response(500, json={"message": "oops"})
    with pytest.raises(ServerError, match="oops"):
        compute(server, store)


def test_a_moment_without_a_server_is_waited_out(store) -> None:
    server = FakeCache()
    failures = [httpx.ConnectError("refused"), httpx.ReadError("reset")]

    def fail(paths):
        if failures:
            raise failures.pop()

    server.on_chat = fail
    report = compute(server, store, retry_delays_s=(0.0, 0.0))
    assert report.num_computed == 24 and not failures
