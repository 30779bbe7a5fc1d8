# SPDX-License-Identifier: Apache-2.0
"""The demo asks both systems the same, and adds up what they say."""

import json
from dataclasses import asdict

import httpx
import pytest
from rich.console import Console

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")

from depcache.cli.demo import make_demo_launch
from depcache.client import Client
from depcache.demo.run import DEPCACHE, SGLANG, Answer, Asked, add_up, ask_all, make_passes, ttft_ms
from depcache.demo.sample import Question, load_questions, load_triples
from depcache.demo.table import make_samples, make_table, make_verdict
from depcache.graph.retrieval import Retriever
from depcache.graph.stores import open_store
from tests.depcache.client.fake_server import FakeServer

QUESTION = Question("q", "Where?", ("Warsaw",))


def answer(ttft_s, *, order=0, flat=100, prompt=60, reused=20, text="Warsaw"):
    return Answer(Asked(QUESTION, (), order), text, flat, prompt, reused, ttft_s)


def shown(*renderables):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for renderable in renderables:
        console.print(renderable)
    return console.export_text()


@pytest.fixture(scope="module")
def passes():
    return make_all_passes()


def make_all_passes():
    with open_store("networkx:") as store:
        store.upsert(load_triples())
        return make_passes(load_questions(), Retriever(store, pruner="words"), seed=0)


def test_the_second_pass_asks_the_same_with_the_same_facts_in_another_order(passes):
    first, second = passes
    assert [asked.question.id for asked in first] == [q.id for q in load_questions()]
    assert [asked.question.id for asked in second] != [asked.question.id for asked in first]
    by_id = {asked.question.id: asked for asked in second}
    moved = 0
    for asked in first:
        other = by_id[asked.question.id]
        assert sorted(asked.paths) == sorted(other.paths)
        moved += asked.paths != other.paths
    assert moved > len(first) // 2


def test_a_seed_gives_the_same_passes_again(passes):
    assert make_all_passes() == passes


def test_both_systems_get_the_same_text_and_only_depcache_the_structure(passes):
    bodies = {}
    for system in (DEPCACHE, SGLANG):
        server = FakeServer()
        with httpx.Client(transport=server.transport) as http:
            client = Client("http://test", http_client=http)
            answers = list(ask_all(client, [passes[0][:3]], system=system))
        assert len(answers) == 3
        bodies[system] = [body for path, body in server.requests if path.endswith("completions")]
    assert all("custom_params" in body for body in bodies[DEPCACHE])
    assert not any("custom_params" in body for body in bodies[SGLANG])
    for ours, stock in zip(bodies[DEPCACHE], bodies[SGLANG], strict=True):
        assert {**stock, "custom_params": ours["custom_params"]} == ours


def test_the_warm_up_shares_nothing_with_the_questions(passes):
    server = FakeServer()
    with httpx.Client(transport=server.transport) as http:
        list(ask_all(Client("http://test", http_client=http), passes, system=SGLANG))
    warm_up, *_ = [body["messages"] for _, body in server.requests]
    asked = [body["messages"] for _, body in server.requests[2:]]
    assert all(messages[0] != warm_up[0] for messages in asked)
    elements = {e for one in passes for a in one for path in a.paths for e in path}
    assert not any(element in warm_up[1]["content"] for element in elements)


def test_figures_add_up_and_have_exactly_the_promised_keys():
    figures = add_up([answer(0.1), answer(0.3, text="Paris"), answer(0.2, reused=60)])
    assert asdict(figures) == {
        "questions": 3,
        "flat_tokens": 300,
        "tree_tokens": 180,
        "reused_tokens": 100,
        "computed_tokens": 80,
        "ttft_ms_median": 200.0,
        "correct": 2,
    }
    json.dumps(asdict(figures))


def test_the_median_can_be_of_one_pass():
    answers = [answer(0.1), answer(0.3), answer(0.5, order=1)]
    assert ttft_ms(answers, 0) == pytest.approx(200)
    assert ttft_ms(answers, 1) == pytest.approx(500)
    assert ttft_ms([], 1) == 0


def test_the_table_shows_both_systems():
    text = shown(make_table({DEPCACHE: [answer(0.1)], SGLANG: [answer(0.2, prompt=100)]}))
    for word in ("DepCache", "SGLang", "2.0x", "20 (33%)", "20 (20%)", "100 ms", "1 of 1"):
        assert word in text


def test_samples_show_odd_answers_as_text():
    assert r"[red]\x00" in shown(make_samples([answer(0.1, text="[red]\x00")]))


@pytest.mark.parametrize(("ours_s", "words"), [(0.1, "came 2.0x sooner"), (0.4, "came 2.0x later")])
def test_the_verdict_is_one_line_and_says_who_was_faster(ours_s, words):
    verdict = make_verdict({DEPCACHE: [answer(ours_s)], SGLANG: [answer(0.2, prompt=100)]})
    assert words in verdict
    assert "computed 2.0x fewer" in verdict
    assert "\n" not in verdict


def test_the_verdict_on_one_system_compares_nothing():
    assert "against" not in make_verdict({DEPCACHE: [answer(0.1)]})


def test_both_servers_are_started_alike_but_for_the_cache(monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    ours, stock = (make_demo_launch("m", name, 1, has_gpu=False) for name in (DEPCACHE, SGLANG))
    start = ours.argv.index("--radix-cache-backend")
    assert ours.argv[start + 1] == "depcache"
    assert ours.argv[start + 2] == "--radix-eviction-policy"
    assert stock.argv == ours.argv[:start] + ours.argv[start + 4 :]
    # SGLang is measured as its users start it; ours reads prompts in threads of its own.
    assert ours.env == {**stock.env, "MALLOC_ARENA_MAX": "2"}
