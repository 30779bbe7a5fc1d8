# SPDX-License-Identifier: Apache-2.0
"""Precomputation against a server in memory: what it sends, refuses, and asks of the disk tier."""

from __future__ import annotations

import httpx
import pytest

from depcache.client import Client
from depcache.errors import ConfigError, PromptError
from depcache.graph import open_store
from depcache.precompute import GraphSource, Precomputer, PrecomputeSettings, select_entities
from tests.depcache.precompute.fake import FakeCache, refused
from tests.depcache.precompute.make import NONE, TRIPLES, compute, planned


def test_settings_that_no_request_could_have_are_refused_at_once(store) -> None:
    for wrong, error, word in (
        ({"layout": "spiral"}, PromptError, "layout"),
        ({"template": "prose"}, PromptError, "template"),
        ({"pruner": "best"}, ConfigError, "prune"),
        ({"num_paths": 0}, ConfigError, "num_paths"),
        ({"messages": [{"role": "user", "content": "no place"}]}, PromptError, "0 times"),
    ):
        with pytest.raises(error, match=word):
            PrecomputeSettings(**wrong)
    for wanted in ("top:0", "top:x", "best", "file:"):
        with pytest.raises(ConfigError, match="no choice of entities"):
            select_entities(store, wanted)
    with pytest.raises(PromptError, match="cannot read"):
        select_entities(store, "file:/no/such/file")


def test_a_server_that_refuses_every_prompt_is_told_by_the_plan(store) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/depcache/explain":
            return refused("moves cached keys")
        return FakeCache().answer(request)

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        job = Precomputer(GraphSource(store, NONE), Client(http_client=http))
        with pytest.raises(PromptError, match="moves cached keys"):
            job.plan(store.names())


# what is sent


def test_the_messages_are_those_of_ask(store) -> None:
    server = FakeCache()
    compute(server, store, "top:1")
    with server.client() as client:
        client.ask([("e0", "r", "x")], "Who?", max_tokens=1)
    ours, asked = server.bodies
    assert ours["messages"][0] == asked["messages"][0]
    stretch = ours["messages"][1]["content"].partition("\n")[0]
    assert asked["messages"][1]["content"].startswith(f"{stretch}\ne0")
    assert asked["custom_params"].keys() == ours["custom_params"].keys()


def test_messages_of_another_program_and_a_salt_are_sent_as_they_are(store) -> None:
    server = FakeCache()
    messages = [{"role": "user", "content": "Context:{{graph_context}}\nQuery: -"}]
    settings = PrecomputeSettings(pruner="none", messages=messages, fields={"cache_salt": "tenant"})
    compute(server, store, "top:1", settings=settings)
    [body] = server.bodies
    assert len(body["messages"]) == 1
    assert body["messages"][0]["content"].startswith("Context:\ne0 -> ")
    assert body["cache_salt"] == "tenant"


# the disk tier


def test_the_disk_tier_is_asked_to_write_at_the_end(store) -> None:
    server = FakeCache()
    assert compute(server, store).num_persisted is None
    assert "/depcache/persist" not in server.asked
    server.disk_tokens = 0
    assert compute(server, store).num_persisted == len(server.cached)


def test_what_a_restarted_server_has_on_disk_is_not_computed_again(store, tmp_path) -> None:
    before = FakeCache()
    before.disk_tokens = 0
    compute(before, store, state=tmp_path / "state")
    restarted = FakeCache()
    restarted.disk_tokens, restarted.on_disk = len(before.cached), before.cached
    with planned(restarted, store, tmp_path / "state") as (job, plan):
        assert plan.pending == () and plan.notes == ()
        assert plan.estimate.num_cached == plan.estimate.num_tokens > 0
        assert job.run(plan).num_requests == 0
    restarted.on_disk = set()
    with planned(restarted, store, tmp_path / "state") as (_, plan):
        assert "the server holds 0%" in plan.notes[0]


def test_a_server_without_the_route_to_persist_is_no_problem(store) -> None:
    server = FakeCache()
    server.disk_tokens, server.can_persist = 0, False
    report = compute(server, store)
    assert report.num_computed == 24 and report.num_persisted is None


def test_graphs_in_files_are_resumed_without_sending(tmp_path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("".join("\t".join(triple) + "\n" for triple in TRIPLES))
    server = FakeCache()
    for expected in (24, 0):
        report = compute(server, open_store(file), state=tmp_path / "state")  # pyright: ignore
        assert report.num_computed == expected
