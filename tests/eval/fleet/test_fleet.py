# SPDX-License-Identifier: Apache-2.0
"""Requests of the fleet, what is counted of them, and what is said where there is no router."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from depcache.client.reply import ReuseReport
from depcache.errors import DepCacheError
from depcache.prompt.roots import roots_of
from eval.__main__ import main
from eval.fleet.command import max_mean_load, to_table
from eval.fleet.drive import Outcome, ask_all, num_system_tokens
from eval.fleet.requests import RELATIONS, make_requests
from tests.helpers.fake_http import start_fake_http


def test_requests_are_drawn_by_popularity_and_the_same_for_a_seed() -> None:
    requests = make_requests(600, 2, num_entities=50, seed=3)
    again = make_requests(600, 2, num_entities=50, seed=3)
    assert requests == again
    asked = [roots_of({"messages": each.messages, **each.extra_body}) for each in requests]
    assert all(len(set(entities)) == 2 for entities in asked)
    counted = Counter(entity for entities in asked for entity in entities)
    counts = [count for _, count in counted.most_common()]
    assert counts[0] > 3 * counts[9] > 0
    assert requests[0].extra_body["custom_params"]["depcache_outline"]["rows"] == [3] * (
        2 * len(RELATIONS)
    )


def test_a_hit_is_what_was_not_computed() -> None:
    reports = [ReuseReport(shared=6, missed=2), ReuseReport(shifted=3, loaded=1, missed=8)]
    outcome = Outcome(["a", "b"], [], reports)
    assert outcome.hit == 0.5
    # The first two tokens of each are common to all: of the other 16, 6 are reused.
    assert outcome.hit_behind(2) == 0.375
    assert Outcome([None], ["busy"]).hit is None
    assert Outcome([None], ["busy"]).hit_behind(2) is None


def test_what_two_strangers_have_in_common_is_the_system() -> None:
    shared = iter([0, 89])

    def answer(exchange):
        choice = {"message": {"role": "assistant", "content": "It is."}, "finish_reason": "stop"}
        report = {"shared": next(shared), "missed": 12}
        exchange.send_json(200, {"choices": [choice], "metadata": {"depcache": report}})

    with start_fake_http(answer) as (url, _):
        assert num_system_tokens(url) == 89


def test_a_server_without_reports_has_no_system_to_count() -> None:
    with (
        start_fake_http(lambda exchange: exchange.send_json(503, {"error": {}})) as (url, _),
        pytest.raises(DepCacheError, match=f"{url} reports nothing"),
    ):
        num_system_tokens(url)


def test_a_fleet_that_answers_nothing_has_no_hit_and_no_load() -> None:
    assert max_mean_load([3, 1]) == 1.5
    assert max_mean_load([0, 0]) is None
    row = {
        "entities": 1,
        "policy": "keys",
        "hit": None,
        "entity_hit": None,
        "max_mean_load": None,
        "lost": 3,
    }
    assert to_table([row]).row_count == 1


def test_keys_are_sent_or_left_out_and_what_fails_is_lost() -> None:
    seen: list[str | None] = []

    def answer(exchange):
        seen.append(exchange.headers.get("x-smg-routing-key"))
        exchange.send_json(503, {"error": {"message": "busy"}})

    requests = make_requests(3, 1, num_entities=5, seed=0)
    with start_fake_http(answer) as (url, _):
        outcome = ask_all(url, requests)
        assert outcome.texts == [None] * 3
        assert len(outcome.errors) == 3 and all("busy" in error for error in outcome.errors)
        assert ask_all(url, requests, sends_keys=False).texts == [None] * 3
    assert all(seen[:3]) and seen[3:] == [None] * 3


def test_a_command_that_is_no_router_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sglang")
    assert main(["fleet", "--smg", str(tmp_path / "smg")]) == 2
    assert "is no command of SMG" in capsys.readouterr().err


def test_parts_that_need_a_router_are_refused_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sglang")
    assert main(["fleet", "--only", "routing", "heard"]) == 2
    assert "--only names routing: that needs --smg" in capsys.readouterr().err
