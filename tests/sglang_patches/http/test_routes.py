# SPDX-License-Identifier: Apache-2.0
"""Every way in through HTTP, on the real server."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

import pytest

from depcache.prompt.render import render
from tests.helpers.ends import SLOWEST_S

pytestmark = pytest.mark.sglang

_fresh = count()


def fresh_paths() -> list[list[str]]:
    """Paths that no test has sent before: they are misses the first time."""
    name = f"Person {next(_fresh)}"
    return [
        [name, "founded", "SpaceX"],
        [name, "founded", "Tesla", "makes", "Model S"],
        [name, "founded", "Tesla", "makes", "Model 3"],
        ["Paris", "capital of", name],
    ]


def chat(paths: list[list[str]], **keywords: Any) -> dict[str, Any]:
    prompt = render(paths, "Who founded it?")
    body = {"model": "m", "messages": prompt.messages, "max_tokens": 4, "temperature": 0}
    return {**body, **prompt.extra_body, **keywords}


def text(paths: list[list[str]]) -> tuple[str, dict[str, Any]]:
    prompt = render(paths, "Who founded it?")
    text = f"Facts:{prompt.flat_text}\nQuestion: who?"
    return text, prompt.params_in(text)


def events(stream: str) -> list[dict[str, Any]]:
    lines = [line for line in stream.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: ") :]) for line in lines[:-1]]


def assert_cold_then_warm(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["missed"] == first["context_tokens"] - first["shared"]
    assert first["missed"] > 0
    assert second["shared"] == second["context_tokens"]
    assert second["missed"] == 0


def test_chat_in_text_form_reports_what_was_reused(served) -> None:
    body = chat(fresh_paths())
    first, second = (served.post("/v1/chat/completions", body).json() for _ in range(2))
    assert_cold_then_warm(first["metadata"]["depcache"], second["metadata"]["depcache"])
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    report = second["metadata"]["depcache"]
    reused = report["shared"] + report["tail"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == reused
    assert second["usage"]["prompt_tokens"] == report["prompt_tokens"]


def test_a_tree_prompt_is_shorter_than_the_same_chat_as_plain_text(served) -> None:
    body = chat(fresh_paths())
    tree = served.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
    del body["custom_params"]
    flat = served.post("/v1/chat/completions", body).json()
    assert tree < flat["usage"]["prompt_tokens"]
    assert "depcache" not in flat["metadata"]


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chat_stream_ends_with_the_report(served, include_usage: bool) -> None:
    body = chat(fresh_paths(), stream=True)
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    chunks = events(served.post("/v1/chat/completions", body).text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["metadata"]["depcache"]["missed"] > 0
    assert ("usage" in chunks[-1]) == include_usage
    assert sum("metadata" in chunk for chunk in chunks) == 1


def test_a_plain_stream_is_stock(served) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    chunks = events(served.post("/v1/chat/completions", {**body, "stream": True}).text)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("metadata" in chunk for chunk in chunks)


def test_completions_take_text_and_ids(served) -> None:
    paths = fresh_paths()
    prompt, custom_params = text(paths)
    body = {"model": "m", "max_tokens": 4, "temperature": 0}
    as_text = served.post(
        "/v1/completions", {**body, "prompt": prompt, "custom_params": custom_params}
    ).json()
    # The same prompt as the server's tokenizer makes it, built here.
    ids, params = served.prompt(paths).to_wire()
    as_ids = served.post("/v1/completions", {**body, "prompt": ids, "custom_params": params}).json()
    assert as_ids["choices"][0]["text"] == as_text["choices"][0]["text"]
    assert_cold_then_warm(as_text["metadata"]["depcache"], as_ids["metadata"]["depcache"])


def test_a_completion_stream_ends_with_the_report(served) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {"model": "m", "prompt": prompt, "max_tokens": 3, "stream": True}
    chunks = events(served.post("/v1/completions", {**body, "custom_params": custom_params}).text)
    assert chunks[-1]["metadata"]["depcache"]["missed"] > 0


def test_several_prompts_have_several_reports_and_n_choices_one(served) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {"model": "m", "max_tokens": 2, "custom_params": custom_params}
    two = served.post("/v1/completions", {**body, "prompt": [prompt, prompt]}).json()
    assert len(two["metadata"]["depcache"]) == 2
    choices = served.post("/v1/completions", {**body, "prompt": prompt, "n": 2}).json()
    assert len(choices["choices"]) == 2
    assert choices["metadata"]["depcache"]["context_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_generate_has_the_report_in_meta_info(served, stream: bool) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {
        "text": prompt,
        "sampling_params": {"max_new_tokens": 3, "custom_params": custom_params},
        "stream": stream,
    }
    response = served.post("/generate", body)
    results = events(response.text) if stream else [response.json()]
    assert len(results) == (3 if stream else 1)
    for result in results:
        assert result["meta_info"]["depcache"]["missed"] > 0


def test_a_generate_batch_mixes_dependency_and_plain_prompts(served) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {
        "text": [prompt, "plain text"],
        "sampling_params": [
            {"max_new_tokens": 2, "custom_params": custom_params},
            {"max_new_tokens": 2},
        ],
    }
    dependency, plain = served.post("/generate", body).json()
    assert dependency["meta_info"]["depcache"]["missed"] > 0
    assert "depcache" not in plain["meta_info"]


def test_chat_takes_ids(served) -> None:
    ids, params = served.prompt(fresh_paths()).to_wire()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    reply = served.post(
        "/v1/chat/completions", {**body, "input_ids": ids, "custom_params": params}
    ).json()
    assert reply["metadata"]["depcache"]["prompt_tokens"] == len(ids)


def test_a_salt_keeps_tenants_apart(served) -> None:
    prompt, custom_params = text(fresh_paths())
    body = {"model": "m", "prompt": prompt, "max_tokens": 2, "custom_params": custom_params}

    def reused(**salt: str) -> int:
        return served.post("/v1/completions", {**body, **salt}).json()["metadata"]["depcache"][
            "shared"
        ]

    assert reused(cache_salt="one") == 0
    assert reused(cache_salt="two") == 0
    assert reused(cache_salt="one") > 0
    assert reused(cache_salt="two") > 0


def test_status_says_what_is_in_place(served) -> None:
    status = served.client.get("/depcache/status").json()
    assert status["active"]
    assert status["problems"] == []
    assert all(status["seams"].values())
    assert len(status["hooks"]) >= 14
    assert all(status["hooks"].values())
    cache = status["cache"]
    assert cache["locked_tokens"] == 0
    assert cache["free_tokens"] + cache["cached_tokens"] == cache["capacity_tokens"]


@pytest.mark.parametrize("form", ["chat", "completion", "generate"])
def test_explain_tells_the_plan_and_changes_nothing(served, form: str) -> None:
    paths = fresh_paths()
    prompt, custom_params = text(paths)
    path, body = {
        "chat": ("/v1/chat/completions", chat(paths)),
        "completion": (
            "/v1/completions",
            {"model": "m", "prompt": prompt, "custom_params": custom_params, "max_tokens": 1},
        ),
        "generate": (
            "/generate",
            {"text": prompt, "sampling_params": {"custom_params": custom_params}},
        ),
    }[form]
    before = served.post("/depcache/explain", body).json()
    assert before["missed"] > 0
    assert served.post("/depcache/explain", body).json() == before
    reply = served.post(path, body).json()
    report = reply.get("metadata", reply.get("meta_info"))["depcache"]
    assert {name: report[name] for name in ("shared", "missed", "plain", "context_tokens")} == {
        name: before[name] for name in ("shared", "missed", "plain", "context_tokens")
    }
    after = served.post("/depcache/explain", body).json()
    assert after["missed"] == 0
    assert after["segments"] == len(after["table"])
    assert sum(row["num_tokens"] for row in after["table"]) == sum(
        row["cached"] for row in after["table"]
    )
    assert "Model" in "".join(row["text"] for row in after["table"])


ADMIN = {"Authorization": "Bearer the-admin-key"}


@pytest.mark.parametrize("route", ["/flush_cache", "/depcache/flush"])
def test_a_flush_empties_the_tree(served, route: str) -> None:
    body = chat(fresh_paths())
    served.post("/v1/chat/completions", body)
    response = served.client.post(route, headers=ADMIN, params={"timeout": SLOWEST_S})
    assert response.status_code == 200
    assert served.client.get("/depcache/status").json()["cache"]["cached_tokens"] == 0
    report = served.post("/v1/chat/completions", body).json()["metadata"]["depcache"]
    assert report["shared"] == 0


def test_stats_count_what_the_requests_report(served) -> None:
    before = served.client.get("/depcache/stats").json()
    body = chat(fresh_paths())
    reports = [
        served.post("/v1/chat/completions", body).json()["metadata"]["depcache"] for _ in range(2)
    ]
    after = served.client.get("/depcache/stats").json()
    assert after["requests"]["requests"] - before["requests"]["requests"] == 2
    for name in ("shared", "shifted", "loaded", "missed", "plain"):
        grown = after["tokens"][name] - before["tokens"][name]
        assert grown == sum(report[name] for report in reports)
    device, earlier = after["tiers"]["device"], before["tiers"]["device"]
    assert device["tokens"] - earlier["tokens"] == device["inserted"] - earlier["inserted"] > 0
    # 4 layers, 2 key-value heads of 32 channels, keys and values, float32
    assert device["bytes_per_token"] == 4 * 2 * 32 * 2 * 4
    assert device["bytes"] == device["tokens"] * device["bytes_per_token"]
    assert (device["evicted"], device["locked_tokens"]) == (0, 0)
    assert "host" not in after["tiers"]


def test_the_tree_is_dumped_node_by_node(served) -> None:
    paths = fresh_paths()
    served.post("/v1/chat/completions", chat(paths))
    dump = served.client.get("/depcache/tree", headers=ADMIN).json()
    held = served.client.get("/depcache/stats").json()["tiers"]["device"]
    assert not dump["is_cut"]
    assert [node["node"] for node in dump["nodes"]] == list(range(held["nodes"]))
    assert sum(node["num_tokens"] for node in dump["nodes"]) == held["tokens"]
    explained = served.post("/depcache/explain", chat(paths)).json()
    ways: list[str] = []  # what other prompts share cuts a segment into several nodes
    for node in dump["nodes"]:
        assert "tokens" not in node
        ways.append(("" if node["parent"] is None else ways[node["parent"]]) + node["text"])
    for row in explained["table"]:
        assert any(way.endswith(row["text"]) for way in ways)
    for node in dump["nodes"]:
        if node["parent"] is not None:
            above = dump["nodes"][node["parent"]]
            assert node["position"] == above["position"] + above["num_tokens"]
    cut = served.client.get("/depcache/tree?limit=1", headers=ADMIN).json()
    assert (len(cut["nodes"]), cut["is_cut"]) == (1, True)


def test_the_tree_is_drawn_for_graphviz(served) -> None:
    served.post("/v1/chat/completions", chat(fresh_paths()))
    dot = served.client.get("/depcache/tree?format=dot", headers=ADMIN).text
    nodes = served.client.get("/depcache/tree", headers=ADMIN).json()["nodes"]
    assert dot.startswith("digraph")
    assert dot.count("label=") == len(nodes)
    assert len(re.findall(r"^  n\d+ -> n\d+;$", dot, re.M)) == sum(
        node["parent"] is not None for node in nodes
    )


@pytest.mark.parametrize(
    ("method", "route"),
    [
        *(("GET", "/depcache/tree"), ("POST", "/depcache/flush")),
        *(("GET", "/depcache/tables"), ("POST", "/depcache/tables")),
    ],
)
def test_what_shows_or_costs_everyone_is_for_the_admin(served, method: str, route: str) -> None:
    assert served.client.request(method, route).status_code == 401
    wrong = {"Authorization": "Bearer another-key"}
    assert served.client.request(method, route, headers=wrong).status_code == 401


@pytest.mark.parametrize("query", ["limit=-1", "limit=x", "format=svg"])
def test_a_bad_question_about_the_tree_is_told(served, query: str) -> None:
    assert served.client.get(f"/depcache/tree?{query}", headers=ADMIN).status_code in (400, 422)


def test_routes_stand_in_the_openapi_document(served) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    names = ("status", "explain", "stats", "tree", "flush")
    assert {f"/depcache/{name}" for name in names} <= set(paths)
