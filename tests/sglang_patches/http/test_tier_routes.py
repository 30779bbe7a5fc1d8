# SPDX-License-Identifier: Apache-2.0
"""The routes that fill, move and empty the tiers, on a server that SGLang's own flags set up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from depcache.client import Client
from depcache.prompt.render import render
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server
from tests.sglang_patches.conftest import ADMIN_KEY, Served

pytestmark = pytest.mark.sglang

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
_fresh = count()


@pytest.fixture(scope="module")
def tiered(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    from transformers import AutoTokenizer

    model = model_path("llama_gqa")
    folder = tmp_path_factory.mktemp("tiers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPCACHE_DISK_GB", "0.05")
        patch.setenv("DEPCACHE_DISK_FOLDER", str(folder / "disk"))
        patch.setenv("DEPCACHE_LOAD_POLICY", "always")
        with start_server(
            model,
            "--enable-hierarchical-cache",
            *("--hicache-ratio", "2"),
            *("--hicache-write-policy", "write_back"),
            *("--hicache-storage-backend", "file"),
            *("--max-total-tokens", "4096"),
            "--enable-metrics",
            *("--admin-api-key", ADMIN_KEY),
            log=folder / "log.txt",
        ) as client:
            yield Served(client, AutoTokenizer.from_pretrained(model))


def entity() -> str:
    """A name that no test has used before."""
    return f"Person {next(_fresh)}"


def about(name: str) -> list[list[str]]:
    return [[name, "founded", "Tesla", "makes", "Model S"], [name, "lives in", "Paris"]]


def body(served: Served, facts: list[list[str]], **keywords: Any) -> dict[str, Any]:
    ids, params = served.prompt(facts, **keywords).to_wire()
    return {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "custom_params": params}}


def ask(served: Served, facts: list[list[str]], **keywords: Any) -> dict[str, Any]:
    reply = served.post("/generate", body(served, facts, **keywords))
    assert reply.status_code == 200, reply.text
    return reply.json()["meta_info"]["depcache"]


def order(served: Served, path: str, json: Any = None) -> dict[str, Any]:
    reply = served.client.post(path, json=json, headers=ADMIN)
    assert reply.status_code == 200, reply.text
    return reply.json()


def tiers(served: Served) -> dict[str, Any]:
    return served.client.get("/depcache/stats").json()["tiers"]


def wait_for(served: Served, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + SLOWEST_S
    while not is_done(found := tiers(served)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def persist(served: Served) -> dict[str, Any]:
    assert order(served, "/depcache/persist")["tokens"] >= 0
    return wait_for(served, lambda found: not found["disk"]["waiting_tokens"])


def test_sglangs_flags_turn_the_tiers_on(tiered: Served) -> None:
    found = tiers(tiered)
    assert found["host"]["capacity_tokens"] == 2 * found["device"]["capacity_tokens"]
    assert found["disk"]["capacity_bytes"] == 50_000_000
    config = tiered.client.get("/depcache/status").json()["config"]
    assert config["write_policy"] == "write_back"


def test_what_was_persisted_outlives_a_flush_and_is_fetched(tiered: Served) -> None:
    facts = about(entity())
    context = ask(tiered, facts)["context_tokens"]
    stored = persist(tiered)
    assert stored["disk"]["tokens"] >= context
    assert order(tiered, f"/depcache/flush?keep_disk=true&timeout={SLOWEST_S}") == {"success": True}
    assert tiers(tiered)["device"]["tokens"] == tiers(tiered)["host"]["tokens"] == 0

    asked = tiered.post("/depcache/prefetch", body(tiered, facts)).json()
    assert asked["fetched"] == asked["tokens"]["disk"] == context
    assert asked["missing"] == 0
    wait_for(tiered, lambda found: found["host"]["tokens"] == context)
    again = tiered.post("/depcache/prefetch", body(tiered, facts)).json()
    assert again["tokens"] == {"device": 0, "host": context, "disk": 0}
    report = ask(tiered, facts)
    assert (report["loaded"], report["missed"]) == (context, 0)


def test_a_flush_waits_for_what_runs_and_one_that_was_refused_leaves_nothing_behind(
    tiered: Served,
) -> None:
    ask(tiered, about(entity()))
    assert persist(tiered)["disk"]["tokens"] > 0
    request = body(tiered, about(entity())) | {"stream": True}
    request["sampling_params"] |= {"max_new_tokens": 2000, "ignore_eos": True}
    flush = "/depcache/flush"
    with tiered.client.stream("POST", "/generate", json=request) as stream:
        chunks = stream.iter_lines()
        next(chunks)
        refused = tiered.client.post(f"{flush}?keep_disk=true&timeout=0", headers=ADMIN)
        assert refused.status_code == 400
        assert order(tiered, f"{flush}?timeout={SLOWEST_S}") == {"success": True}
        assert "data: [DONE]" in list(chunks)
    assert tiers(tiered)["disk"]["tokens"] == 0


@pytest.mark.parametrize("layout", ["tree", "sequential"])
def test_invalidation_takes_the_trees_of_an_entity_and_no_others(
    tiered: Served, layout: str
) -> None:
    changed, kept = entity(), entity()
    ask(tiered, about(changed) + about(kept), layout=layout)
    persist(tiered)
    before = tiers(tiered)
    # Both names begin alike; a path is its elements, so only one of them is meant.
    gone = order(tiered, "/depcache/invalidate", body(tiered, [[changed]], layout=layout))
    assert gone["in_use"] == 0
    assert gone["tokens"]["device"] == gone["tokens"]["disk"] > 0
    after = tiers(tiered)
    assert before["disk"]["tokens"] - after["disk"]["tokens"] == gone["tokens"]["disk"]
    assert ask(tiered, about(kept), layout=layout)["missed"] == 0
    assert ask(tiered, about(changed), layout=layout)["missed"] == gone["tokens"]["device"]
    nothing = order(tiered, "/depcache/invalidate", body(tiered, [[entity()]]))
    assert nothing["tokens"] == {"device": 0, "host": 0, "disk": 0}


def test_an_entity_is_not_another_whose_name_begins_alike(tiered: Served) -> None:
    name = entity()
    longer = [f"{name}{end}" for end in ("5", " junior", "-2")]
    client = Client(http_client=tiered.client, base_url=str(tiered.client.base_url))

    def missed(asked: str) -> int:
        report = client.ask(about(asked), "Who?", system="Hm.", max_tokens=1).depcache
        assert report is not None
        return report.missed

    def invalidate(*names: str) -> dict[str, int]:
        body = render([(one,) for one in names], "-", system="Hm.")
        messages = {"messages": body.messages, **body.extra_body}
        return order(tiered, "/depcache/invalidate", messages)["tokens"]

    for one in (name, *longer):
        missed(one)
    persist(tiered)
    before = tiers(tiered)["device"]["tokens"]
    gone = invalidate(name)
    assert gone["device"] == gone["disk"] > 0
    assert missed(longer[0]) == missed(longer[1]) == missed(longer[2]) == 0
    assert missed(name) == gone["device"]
    # Together none hides another, and of the names nothing is left.
    invalidate(name, *longer)
    assert tiers(tiered)["device"]["tokens"] < before - 3 * gone["device"]
    assert invalidate(name, *longer) == {"device": 0, "host": 0, "disk": 0}
    for one in (*longer, name):
        assert missed(one) > 0


def test_invalidation_is_of_all_tenants_or_of_one(tiered: Served) -> None:
    name = entity()
    for salt in ("a", "b", "c"):
        tiered.post("/generate", {**body(tiered, about(name)), "extra_key": salt})
    of_one = {**body(tiered, [[name]]), "extra_key": "a"}
    one = order(tiered, "/depcache/invalidate", of_one)["tokens"]["device"]
    rest = order(tiered, "/depcache/invalidate", body(tiered, [[name]]))["tokens"]["device"]
    assert rest == 2 * one > 0


def test_the_disk_is_in_the_metrics(tiered: Served) -> None:
    ask(tiered, about(entity()))
    persist(tiered)
    ask(tiered, about(entity()))
    text = tiered.client.get("/metrics").text
    resident = [
        line
        for line in text.splitlines()
        if line.startswith("depcache:resident_tokens") and 'tier="disk"' in line
    ]
    assert len(resident) == 1
    assert float(resident[0].rsplit(" ", 1)[1]) > 0


@pytest.mark.parametrize("path", ["/depcache/invalidate", "/depcache/persist"])
def test_what_costs_everyone_is_for_the_admin(tiered: Served, path: str) -> None:
    assert tiered.client.post(path, json={}).status_code == 401


@pytest.mark.parametrize("path", ["/depcache/invalidate", "/depcache/prefetch"])
def test_a_body_without_a_prompt_is_refused_with_the_reason(tiered: Served, path: str) -> None:
    for bad in ({}, {"input_ids": [1, 2]}, {"text": "no paths"}, [1]):
        reply = tiered.client.post(path, json=bad, headers=ADMIN)
        assert reply.status_code == 400, reply.text
        assert reply.json()["message"]
    assert ask(tiered, about(entity()))["missed"] > 0


def test_a_flush_empties_every_tier(tiered: Served) -> None:
    ask(tiered, about(entity()))
    persist(tiered)
    order(tiered, f"/depcache/flush?timeout={SLOWEST_S}")
    found = tiers(tiered)
    assert [found[tier]["tokens"] for tier in ("device", "host", "disk")] == [0, 0, 0]
    assert found["disk"]["bytes"] == 0
