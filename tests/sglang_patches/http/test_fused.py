# SPDX-License-Identifier: Apache-2.0
"""Fused requests over the real routes: what a client asks, what it is told, what is refused."""

from __future__ import annotations

from itertools import count
from math import ceil
from typing import Any

import pytest

import depcache
from depcache.client.reply import ReuseReport
from depcache.prompt.recompute import Select
from depcache.prompt.render import render_chunks

pytestmark = pytest.mark.sglang

CHAT = "/v1/chat/completions"
PINNED = depcache.Recompute(0.2, is_pinned=True)
_fresh = count()


def passages(num: int = 3) -> list[str]:
    """Texts that no test has sent before."""
    start = next(_fresh)
    return [
        f"In year {start} ship {start * 7 + i} sailed from port {i} to Goa." for i in range(num)
    ]


def body_of(chunks: list[str], recompute: Any = PINNED, **fields: Any) -> dict[str, Any]:
    prompt = render_chunks(chunks, "Which ship sailed?", recompute=recompute)
    body = {"model": "m", "messages": prompt.messages, "max_tokens": 4, "temperature": 0}
    return {**body, **prompt.extra_body, **fields}


def report_of(reply: dict[str, Any]) -> dict[str, Any]:
    return reply["metadata"]["depcache"]


def test_a_client_asks_about_passages(served) -> None:
    chunks = passages()
    with depcache.Client(str(served.client.base_url), http_client=served.client) as client:
        first = client.ask_chunks(chunks, "Which ship sailed?", recompute=PINNED, max_tokens=4)
        again = client.ask_chunks(chunks[::-1], "And when?", recompute=PINNED, max_tokens=4)
        streamed = client.ask_chunks(chunks, "Why?", recompute=PINNED, max_tokens=4, stream=True)
        streamed.finish()
    assert first.depcache.settled > 0 and first.depcache.missed == 0
    for reply in (again, streamed.finish()):
        report = reply.depcache
        assert isinstance(report, ReuseReport)
        assert (report.see, report.select, report.recompute) == ("fused", "first", 0.2)
        assert report.settled == report.missed == 0
        assert report.recomputed > 0 and report.shifted > report.recomputed
        assert report.differs == ("visibility",) and not report.is_exact
        assert report.computed == report.recomputed + report.plain


def test_passages_alone_are_an_exact_dependency_prompt(served) -> None:
    chunks = passages()
    report = report_of(served.post(CHAT, body_of(chunks, None)).json())
    assert report["layout"] == "tree" and "see" not in report
    fused = report_of(served.post(CHAT, body_of(chunks)).json())
    assert fused["settled"] == 0  # both read the same nodes


def test_paths_are_rows_that_stand_whole(served) -> None:
    name = f"Explorer {next(_fresh)}"
    paths = [[name, "sailed to", "Brazil"], [name, "sailed to", "India"]]
    prompt = depcache.render(paths, "Where to?", recompute=PINNED)
    body = {"model": "m", "messages": prompt.messages, "max_tokens": 4, **prompt.extra_body}
    report = report_of(served.post(CHAT, body).json())
    assert report["see"] == "fused" and report["differs"] == ["visibility"]
    assert body["messages"] == depcache.render(paths, "Where to?").messages


def test_all_of_it_computed_again_is_the_flat_prompt(served) -> None:
    body = body_of(passages(), 1)
    told = report_of(served.post(CHAT, body).json())
    assert (told["see"], told["differs"], told["recomputed"]) == ("flat", [], 0)
    plain = {key: value for key, value in body.items() if key != "custom_params"}
    usage = served.post(CHAT, plain).json()["usage"]
    assert usage["prompt_tokens"] == told["prompt_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= told["context_tokens"]


def test_salts_keep_settled_rows_apart(served) -> None:
    chunks = passages()
    for salt, is_settled in (("one", True), ("two", True), ("one", False)):
        report = report_of(served.post(CHAT, body_of(chunks, cache_salt=salt)).json())
        assert (report["settled"] > 0) == is_settled


def test_explain_says_what_would_be_selected_and_changes_nothing(served) -> None:
    body = body_of(passages())
    told = served.post("/depcache/explain", body).json()
    assert told["layout"] == "sequential" and told["selected"] > 0
    assert told == served.post("/depcache/explain", body).json()
    assert report_of(served.post(CHAT, body).json())["settled"] > 0


def test_several_answers_to_one_prompt(served) -> None:
    reply = served.post(CHAT, body_of(passages(), n=2)).json()
    assert len(reply["choices"]) == 2


@pytest.mark.parametrize("name", ["query", "query-context", "mixed", "deviation"])
def test_a_client_asks_for_what_scores_choose(served, name: Select) -> None:
    recompute = depcache.Recompute(0.2, name, is_pinned=True)
    chunks = passages()
    with depcache.Client(str(served.client.base_url), http_client=served.client) as client:
        told = [
            client.ask_chunks(chunks, "Which ship?", recompute=recompute, max_tokens=4).depcache
            for _ in range(2)
        ]
    cold, warm = told
    assert isinstance(cold, ReuseReport) and isinstance(warm, ReuseReport)
    assert (warm.see, warm.select, warm.differs) == ("fused", name, ("visibility",))
    assert warm.recomputed == cold.recomputed > 0 and warm.missed == cold.missed == 0
    num_context = warm.context_tokens
    # The question once more, or one layer of four, and one token.
    num_scoring = ceil(num_context / 4) if name == "deviation" else warm.plain
    assert warm.settled == num_scoring + 1
    assert cold.settled > warm.settled
    explained = served.post("/depcache/explain", body_of(chunks, recompute)).json()
    assert explained["selected"] == warm.recomputed


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"depcache_recompute": 2}, "less than or equal to 1"),
        ({"depcache_select": "given", "depcache_selected": [9]}, "nobody has counted"),
        ({"depcache_select": "best"}, "depcache_select is 'best'"),
        ({"depcache_select": "query", "depcache_selected": [9]}, "does not go with"),
        (
            {"depcache_scoring": {"num": 1, "taken": []}},
            "'depcache_scoring' is no key of version 2",
        ),
        ({"depcache_layout": "tree"}, "send 'sequential'"),
        ({"depcache_selected": [[]]}, "depcache_selected"),
        ({"depcache_pin": 1}, "depcache_pin is 1"),
    ],
)
def test_what_does_not_fit_is_refused(served, changed: dict[str, Any], why: str) -> None:
    body = body_of(passages())
    body["custom_params"] = {**body["custom_params"], **changed}
    response = served.post(CHAT, body)
    assert response.status_code == 400
    assert why in response.json()["message"]
    assert served.post(CHAT, body_of(passages())).status_code == 200
