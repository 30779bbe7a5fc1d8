# SPDX-License-Identifier: Apache-2.0
"""What a tenant is told is the same whatever another has asked, but for what is public."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import depcache
from depcache.prompt.render import render_chunks
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server
from tests.sglang_patches.conftest import ADMIN_KEY

pytestmark = pytest.mark.sglang

CHAT = "/v1/chat/completions"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
PUBLIC = "the graph"
FACTS = [["Marie Curie", "founded", "Institut"], ["Marie Curie", "born in", "Warsaw"]]
OTHERS = [["Pierre", "knew", "Marie Curie"], ["Pierre", "born in", "Paris"]]
CHUNKS = ["In 1903 ship 7 sailed from port 3 to Goa.", "In 1904 ship 9 sailed from Goa."]


@pytest.fixture(scope="module")
def tenants(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("probing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPCACHE_PUBLIC_SALT", PUBLIC)
        patch.setenv("DEPCACHE_PRIVATE_COUNTS", "true")
        patch.setenv("DEPCACHE_HOST_GB", "0.01")
        patch.setenv("DEPCACHE_DISK_GB", "0.05")
        patch.setenv("DEPCACHE_DISK_FOLDER", str(folder / "disk"))
        patch.setenv("DEPCACHE_LOAD_POLICY", "always")
        with start_server(
            model_path("llama_gqa"),
            "--enable-cache-report",
            *("--admin-api-key", ADMIN_KEY),
            *("--max-total-tokens", "4096"),
            log=folder / "log.txt",
        ) as client:
            yield client


def chat(client: httpx.Client, salt: str, prompt: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": prompt.messages, "max_tokens": 4, "temperature": 0}
    reply = client.post(CHAT, json={**body, **prompt.extra_body, "cache_salt": salt})
    assert reply.status_code == 200, reply.text
    return reply.json()


def seen(reply: dict[str, Any]) -> dict[str, Any]:
    """What a tenant is told beside the answer's name and time."""
    return {name: reply[name] for name in ("choices", "usage", "metadata") if name in reply}


def ask_all(client: httpx.Client, salt: str) -> list[dict[str, Any]]:
    """Every kind of request, once, and what they say."""
    task = "Who founded the institute that stands in Warsaw, and what did she do before?"
    told = []
    for layout in ("tree", "staggered", "sequential"):
        told.append(seen(chat(client, salt, depcache.render(FACTS, task, layout=layout))))
    fused = render_chunks(CHUNKS, task, recompute=depcache.Recompute(0.2, is_pinned=True))
    told.append(seen(chat(client, salt, fused)))
    plain = {"model": "m", "prompt": f"{task} " * 4, "max_tokens": 4, "temperature": 0}
    told.append(seen(client.post("/v1/completions", json={**plain, "cache_salt": salt}).json()))
    prompt = depcache.render(FACTS, task)
    question = {"messages": prompt.messages, **prompt.extra_body, "cache_salt": salt}
    for route in ("explain", "prefetch"):
        reply = client.post(f"/depcache/{route}", json={"model": "m", **question})
        assert reply.status_code == 200, reply.text
        told.append(reply.json())
    return told


def flush(client: httpx.Client) -> None:
    reply = client.post("/depcache/flush", params={"timeout": 30}, headers=ADMIN)
    assert reply.status_code == 200, reply.text


def test_a_probe_says_nothing_of_another_tenant(tenants: httpx.Client) -> None:
    flush(tenants)
    alone = ask_all(tenants, "bob")
    flush(tenants)
    ask_all(tenants, "alice")
    assert ask_all(tenants, "bob") == alone
    # It would: the same tenant is told another thing the second time.
    again = ask_all(tenants, "bob")
    assert all(first != second for first, second in zip(alone[:5], again[:5], strict=True))


def test_nor_through_what_is_public(tenants: httpx.Client) -> None:
    prompt, mine = depcache.render(FACTS, "Who?"), depcache.render(FACTS + OTHERS, "Who?")
    told = []
    for asks_before in (False, True):
        flush(tenants)
        chat(tenants, PUBLIC, prompt)
        if asks_before:
            chat(tenants, "alice", mine)
        told.append([seen(chat(tenants, "bob", mine)), seen(chat(tenants, PUBLIC, mine))])
    assert told[0] == told[1]


def test_what_is_public_is_computed_once_for_all(tenants: httpx.Client) -> None:
    flush(tenants)
    prompt = depcache.render(FACTS, "Who founded it?")
    first = chat(tenants, PUBLIC, prompt)
    assert first["metadata"]["depcache"]["missed"] > 0
    replies = [chat(tenants, salt, prompt) for salt in ("alice", "bob", "")]
    for reply in replies:
        report = reply["metadata"]["depcache"]
        assert report["shared"] == report["context_tokens"] and report["missed"] == 0
        assert reply["choices"][0]["message"] == first["choices"][0]["message"]
    # What hangs behind it is the tenant's all the same.
    more = depcache.render([*FACTS, *OTHERS], "Who founded it?")
    reports = [
        chat(tenants, salt, more)["metadata"]["depcache"] for salt in ("alice", "alice", "bob")
    ]
    assert [report["missed"] > 0 for report in reports] == [True, False, True]
    assert all(report["shared"] > 0 for report in reports)


def test_what_is_public_comes_back_from_disk(tenants: httpx.Client) -> None:
    flush(tenants)
    prompt = depcache.render(FACTS, "Who founded it?")
    chat(tenants, PUBLIC, prompt)
    assert tenants.post("/depcache/persist", headers=ADMIN).status_code == 200
    wait_for_disk(tenants)
    reply = tenants.post(
        "/depcache/flush", params={"timeout": 30, "keep_disk": True}, headers=ADMIN
    )
    assert reply.status_code == 200, reply.text
    report = chat(tenants, "carol", prompt)["metadata"]["depcache"]
    assert report["loaded"] == report["context_tokens"] and report["missed"] == 0


def wait_for_disk(client: httpx.Client) -> None:
    deadline = time.monotonic() + SLOWEST_S
    while True:
        disk = client.get("/depcache/stats", headers=ADMIN).json()["tiers"]["disk"]
        if not disk["waiting_tokens"]:
            return
        assert time.monotonic() < deadline, disk
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "status"),
        ("GET", "stats"),
        ("GET", "tree"),
        ("GET", "roots"),
        ("GET", "tables"),
        ("POST", "flush"),
        ("POST", "invalidate"),
        ("POST", "ui/watch"),
    ],
)
def test_counts_of_all_tenants_are_for_the_admin(
    tenants: httpx.Client, method: str, route: str
) -> None:
    reply = tenants.request(method, f"/depcache/{route}")
    assert reply.status_code == 401, reply.text
    reply = tenants.request(method, f"/depcache/{route}", headers=ADMIN)
    assert reply.status_code != 401, reply.text


@pytest.mark.parametrize("route", ["/server_info", "/get_server_info"])
def test_sglang_tells_its_own_state_without_what_is_cached(
    tenants: httpx.Client, route: str
) -> None:
    chat(tenants, "alice", depcache.render(FACTS, "Who?"))
    for headers in ({}, ADMIN):
        reply = tenants.get(route, headers=headers)
        assert reply.status_code == 200, reply.text
        (state,) = reply.json()["internal_states"]
        assert state["memory_usage"] and "depcache" not in state
        assert "cached_tokens" not in reply.text and "evicted" not in reply.text


@pytest.mark.parametrize("route", ["/v1/loads", "/v1/loads?format=prometheus", "/get_load"])
def test_loads_which_tell_what_was_found_are_for_the_admin(
    tenants: httpx.Client, route: str
) -> None:
    reply = tenants.get(route, headers=ADMIN)
    if reply.status_code == 404:
        assert route == "/get_load"  # not in every release
        return
    assert reply.status_code == 200 and "num_" in reply.text
    assert tenants.get(route).status_code == 401


def test_no_other_route_that_may_be_read_tells_a_count(tenants: httpx.Client) -> None:
    """Whatever a release has beside: each is asked without a key."""
    paths = [
        path
        for path, ways in tenants.get("/openapi.json").json()["paths"].items()
        if "get" in ways and "{" not in path
    ]
    assert "/server_info" in paths and "/model_info" in paths
    for path in paths:
        reply = tenants.get(path)
        for name in ("cached_tokens", "evicted", "cache_hit", "uncached"):
            assert name not in reply.text, path
