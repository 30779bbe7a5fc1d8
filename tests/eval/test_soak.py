# SPDX-License-Identifier: Apache-2.0
"""`python -m eval soak`: what it judges by, what it counts, and when the bar is missed."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.wire import WireText, forest_from_wire, parse_wire
from depcache.tiny.models import TINY, model_folder
from eval.__main__ import main
from eval.soak import command
from eval.soak.calls import Caller, Reply, read_generated, without_dependencies
from eval.soak.command import make_plan
from eval.soak.heavy import CONTEXT_TOKENS, SMALL_NODES, Heavies
from eval.soak.judge import (
    COLD,
    EXACT,
    FINITE,
    TOLERANCE,
    Answer,
    Judge,
    compare,
    how_to_judge,
    shape_of,
)
from eval.soak.ledger import Ledger, reason_of
from eval.soak.phases import ON_MAIN, PHASES
from eval.soak.probe import Gap, Probe, hold_ups, usual_ms
from eval.soak.prompts import LAYOUTS, Prompt, World
from eval.soak.questions import Request
from eval.soak.report import RSS_MB_PER_HOUR, find_missed, make_report, to_text
from eval.soak.server import Usage, held_at_rest, num_leaked
from eval.soak.small_disk import MountError, small_disk
from eval.soak.stalls import LIMIT_MS, Stall
from eval.soak.watch import Sample, fit_slope, summarize
from eval.soak.weights import Weights
from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens

# -- the oracle's structure ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("system_len", [0, 1, 5])
def test_mask_and_positions_are_those_of_the_nested_trees(layout: str, system_len: int) -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import dense_mask, positions

    rng = random.Random(f"{layout}{system_len}")
    for _ in range(20):
        trees = random_forest(rng, 4)
        prompt = TreePrompt(random_tokens(rng, system_len), trees, random_tokens(rng, 3), layout)
        structure = prompt.params()
        assert (dense_mask(prompt.num_tokens, structure, 2) == prompt.mask(2)).all()
        assert (positions(prompt.num_tokens, structure, 2) == prompt.positions_with(2)).all()


def test_a_plain_prompt_is_causal_and_in_order() -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import dense_mask, positions

    assert (dense_mask(3, None, 1) == np.tri(4, dtype=bool)).all()
    assert positions(3, None, 1).tolist() == [0, 1, 2, 3]


# -- prompts -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(model_folder(TINY))


def test_a_world_draws_every_kind_in_every_form_and_the_same_again(tokenizer: Any) -> None:
    prompts = [World(tokenizer, 3).draw(random.Random(i)) for i in range(200)]
    assert prompts == [World(tokenizer, 3).draw(random.Random(i)) for i in range(200)]
    assert {(p.kind, p.form) for p in prompts} == {
        (kind, form) for kind in ("plain", *LAYOUTS) for form in ("ids", "text", "chat")
    }
    for prompt in prompts:
        wire = parse_wire(prompt.structure)
        if wire is not None:
            forest = forest_from_wire(prompt.input_ids, wire)
            assert forest.system_len == prompt.system_len > 0
        assert (prompt.custom_params is None) == (prompt.kind == "plain")


def test_a_long_prompt_is_nearly_as_long_as_it_may_be(tokenizer: Any) -> None:
    world = World(tokenizer, 0)
    for seed in range(20):
        count = len(world.draw_long(random.Random(seed), 1200).input_ids)
        assert 900 < count <= 1200


# -- judging -------------------------------------------------------------------------------------

# Two places of a vocabulary of three tokens.
LOGPROBS = np.log(np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], np.float32))


def answer(tokens: list[int], *, off: float = 0.0, lost: int = 0, **changes: Any) -> Answer:
    rows = [[(float(LOGPROBS[step, token]) + off, token)] for step, token in enumerate(tokens)]
    return Answer(tokens, rows[lost:], **{"num_asked": len(tokens), **changes})


def test_the_likeliest_tokens_with_their_log_probabilities_are_right() -> None:
    assert compare(answer([0, 1]), LOGPROBS) == (pytest.approx(0, abs=1e-6), "")


def test_another_token_is_wrong_and_so_is_another_log_probability() -> None:
    assert "token 1 is 0" in compare(answer([0, 0]), LOGPROBS)[1]
    error, wrong = compare(answer([0, 1], off=2 * TOLERANCE), LOGPROBS)
    assert error == pytest.approx(2 * TOLERANCE, rel=1e-3)
    assert "off" in wrong
    assert not compare(answer([0, 1], off=TOLERANCE / 2), LOGPROBS)[1]


def test_two_tokens_that_cannot_be_told_apart_are_both_right() -> None:
    tie = LOGPROBS.copy()
    tie[0, 1] = tie[0, 0] - TOLERANCE / 2
    assert not compare(Answer([1], [[(float(tie[0, 1]), 1)]], 1), tie[:1])[1]


def test_the_rows_that_are_there_are_the_last_ones() -> None:
    assert not compare(answer([0, 1], lost=1), LOGPROBS)[1]
    assert shape_of(answer([0, 1], lost=1))
    assert not shape_of(answer([0, 1], lost=1, num_retractions=1))


def test_an_answer_has_the_length_that_was_asked_for_and_numbers() -> None:
    assert not shape_of(answer([0, 1]))
    assert "3 tokens were asked for" in shape_of(answer([0, 1], num_asked=3))
    assert "log-probabilities of token 0" in shape_of(answer([0], off=float("nan")))
    assert "log-probability 2" in shape_of(Answer([1], [[(-0.1, 2)]], 1))


def prompt_of(kind: str, system_len: int = 4) -> Prompt:
    structure = {
        "depcache_version": 1,
        "depcache_layout": kind,
        "depcache_system_len": system_len,
        "depcache_segment_lens": [3],
        "depcache_segment_parents": [-1],
    }
    return Prompt(kind, list(range(100, 110)), None if kind == "plain" else structure)


def test_what_moves_keys_is_judged_exactly_only_where_nothing_was_reused() -> None:
    cold = {"shared": 4, "shifted": 0, "loaded": 0, "missed": 3, "retractions": 0}
    warm = cold | {"shifted": 3, "missed": 0}
    assert how_to_judge(prompt_of("plain"), None) == EXACT
    assert how_to_judge(prompt_of("tree"), warm) == EXACT
    for layout in ("staggered", "sequential"):
        assert how_to_judge(prompt_of(layout), cold) == COLD
        assert how_to_judge(prompt_of(layout), warm) == FINITE
        assert how_to_judge(prompt_of(layout), cold | {"retractions": 1}) == FINITE
        assert how_to_judge(prompt_of(layout), None) == FINITE


@pytest.mark.timeout(300)
def test_the_judge_knows_which_weights_spoke(tokenizer: Any) -> None:
    pytest.importorskip("torch")
    from eval.soak.oracle import Oracle
    from eval.soak.phases import FOLDERS

    prompt = World(tokenizer, 1).draw(random.Random(4))
    names = list(FOLDERS)
    said: list[Answer] = []
    for name in names:
        oracle = Oracle(FOLDERS[name])
        logprobs = oracle.score(prompt.input_ids, prompt.structure, [0])
        token = int(logprobs[0].argmax())
        said.append(Answer([token], [[(float(logprobs[0, token]), token)]], 1))

    async def verdicts() -> list[Any]:
        with Judge(FOLDERS) as judge:
            asked = [(said[0], names[:1]), (said[0], names[1:]), (said[1], names)]
            return [await judge.judge(prompt, one, of, None) for one, of in asked]

    first, other, either = asyncio.run(verdicts())
    assert not first.wrong and first.error < 1e-5
    assert other.wrong
    assert not either.wrong and either.weights == names[1]


# -- weights, stalls, growth -----------------------------------------------------------------------


def test_while_weights_change_a_request_may_have_run_with_both() -> None:
    weights = Weights.of("a")
    before = time.monotonic()
    with weights.changing_to("b"):
        during = time.monotonic()
        assert weights.between(during, during) == ["a", "b"]
    time.sleep(0.002)
    after = time.monotonic()
    assert weights.between(before - 2, before - 1) == ["a"]
    assert weights.between(before - 1, after) == ["a", "b"]
    assert weights.between(after, after + 1) == ["b"]


def test_a_hold_up_is_what_is_longer_than_usual_for_that_user() -> None:
    quiet = [Gap("fast", i, i + 0.01) for i in range(9)] + [
        Gap("slow", i, i + 0.5) for i in range(9)
    ]
    usual = usual_ms(quiet)
    assert usual == {"fast": pytest.approx(10), "slow": pytest.approx(500)}
    gaps = [Gap("slow", 20.0, 20.6), Gap("fast", 20.1, 20.4), Gap("fast", 30.0, 39.0)]
    held_up = hold_ups(gaps, usual, 20.2, 21.0)
    assert held_up == {"fast": pytest.approx(290), "slow": pytest.approx(100)}
    assert hold_ups(gaps, usual, 22.0, 23.0) == {"fast": 0.0, "slow": 0.0}


def test_the_heavy_prompts_just_fit_into_the_context(tokenizer: Any) -> None:
    heavies = Heavies(tokenizer).all()
    for name in (SMALL_NODES, "largest tree of ids"):
        body = json.loads(heavies[name](random.Random(1)).content or "")
        wire = parse_wire(body["sampling_params"]["custom_params"])
        assert wire is not None
        forest = forest_from_wire(body["input_ids"], wire)
        assert 0.95 * CONTEXT_TOKENS < forest.num_tokens <= CONTEXT_TOKENS
        assert (int(forest.lens.max()) == 1) == (name == SMALL_NODES)
    body = json.loads(heavies["300 entities, /generate"](random.Random(1)).content or "")
    wire = parse_wire(body["sampling_params"]["custom_params"])
    assert isinstance(wire, WireText) and len({path[0] for path in wire.paths}) == 300
    prompt = DepPrompt.from_text(body["text"], wire, tokenizer=tokenizer)
    assert 0.8 * CONTEXT_TOKENS < prompt.num_tokens <= CONTEXT_TOKENS


def test_every_heavy_request_is_new_every_time_and_its_twin_is_plain(tokenizer: Any) -> None:
    heavies = Heavies(tokenizer).all()
    for name, make in heavies.items():
        heavy = make(random.Random(1))
        assert (heavy.twin is None) == (not heavy.twin_route), name
        assert "depcache_" not in (heavy.twin or ""), name
        if heavy.content is not None and "custom_params" not in (heavy.twin or ""):
            assert "depcache_" in heavy.content, name
    fresh = {heavies["300 entities, chat"](random.Random(i)).content for i in range(3)}
    assert len(fresh) == 3


def test_what_the_twin_costs_is_not_the_stall() -> None:
    stall = Stall("x", 200, 1.0, {"a": 700.0, "b": 150.0}, {"a": 680.0, "b": 20.0}, 1)
    assert (stall.who, stall.stall_ms) == ("b", pytest.approx(130))
    assert Stall("x", 200, 1.0, {"a": 300.0}, {"a": 600.0}, 1).stall_ms == 0
    assert Stall("x", 200, 1.0, {"a": 300.0}, {}, 1).stall_ms == 300


def test_a_slope_is_that_of_the_line() -> None:
    hours = [i / 100 for i in range(50)]
    assert fit_slope(hours, [7 + 20 * h for h in hours]) == (
        pytest.approx(20),
        pytest.approx(0, abs=1e-9),
    )
    noise = random.Random(1)
    slope, error = fit_slope(hours, [20 * h + noise.gauss(0, 1) for h in hours])
    assert abs(slope - 20) < 4 * error
    assert fit_slope([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == (0.0, 0.0)


def test_growth_begins_behind_the_warm_up_and_forgets_what_is_open_for_a_while() -> None:
    def sample(i: int) -> Sample:
        warm_up = 50.0 * max(0, 20 - i)
        rss = {"scheduler": 500.0, "http": 1000 - warm_up + i * 0.01}
        return Sample(float(i), 1, Usage(rss, 40 + (i % 7), 12 + (i > 80)))

    found = summarize([sample(i) for i in range(100)])
    assert found["rss_growth_mb_per_hour"] == pytest.approx(36)  # 0.01 MB a second
    assert found["rss_growth_mb_per_hour_of"] == {"scheduler": 0, "http": pytest.approx(36)}
    assert (found["fd_growth"], found["threads_growth"]) == (0, 1)
    assert summarize([])["rss_growth_mb_per_hour"] is None


def cache(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    device = {"locked_tokens": 0, "private_tokens": 0, "capacity_tokens": 100}
    device |= {"free_tokens": 60, "cached_tokens": 40}
    host = {"capacity_tokens": 50, "free_tokens": 20, "cached_tokens": 30}
    disk = {"waiting_requests": 0, "open_operations": 0}
    return {"cache": {**device, "host": host, "disk": disk, **changes}}, {"waiting_requests": 0}


def test_at_rest_every_token_is_free_or_cached() -> None:
    assert held_at_rest(*cache()) == {}
    held = held_at_rest(*cache(free_tokens=55, locked_tokens=3))
    assert held == {"locked tokens": 3, "tokens neither free nor cached": 5}
    assert num_leaked(held) == 8
    host = {"capacity_tokens": 50, "free_tokens": 20, "cached_tokens": 31}
    assert num_leaked(held_at_rest(*cache(host=host))) == 1
    waiting = held_at_rest(*cache(disk={"waiting_requests": 2, "open_operations": 0}))
    assert (num_leaked(waiting), len(waiting)) == (0, 1)


# -- requests and answers --------------------------------------------------------------------------


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    event = 'data: {"meta_info": {}, "output_ids": [1], "index": 0}\n\n'
    assert read_generated(event + "data: [DONE]\n\n", is_stream=True)[0]["output_ids"] == [1]
    with pytest.raises(ValueError, match="no end"):
        read_generated(event, is_stream=True)
    with pytest.raises(ValueError, match="meta_info"):
        read_generated('data: {"error": 1}\n\ndata: [DONE]\n', is_stream=True)


def test_an_answer_that_lacks_something_is_a_value_error() -> None:
    request = Request(prompt_of("tree"), "/generate", {}, 1)
    with pytest.raises(ValueError, match="output_ids"):
        request.read('{"meta_info": {"output_token_logprobs": [], "output_top_logprobs": []}}')
    two = Request(prompt_of("tree"), "/v1/completions", {}, 1, num_choices=2)
    with pytest.raises(ValueError, match="2 answers were asked for and 0"):
        two.read('{"choices": []}')
    spoken = {"index": 0, "prompt_token_ids": [1], "token_ids": [5]}
    one = Request(prompt_of("tree"), "/v1/completions", {}, 1)
    with pytest.raises(ValueError, match="the prompt became"):
        one.read(json.dumps({"choices": [spoken]}))


def test_refusals_that_differ_in_values_only_are_one() -> None:
    first = reason_of('{"error": {"message": "segment 17 starts with token 4: merge them"}}')
    assert first == reason_of('{"message": "segment 3 starts with token 99: merge them"}')
    assert reason_of("no JSON at all") == "no JSON at all"


def test_a_twin_without_dependency_data_is_made_for_sglangs_routes_only() -> None:
    body = '{"input_ids": [1], "sampling_params": {"n": 1, "custom_params": {"a": 1}}}'
    twin = without_dependencies("/generate", body)
    assert twin is not None
    assert json.loads(twin) == {"input_ids": [1], "sampling_params": {"n": 1}}
    assert without_dependencies("/depcache/explain", body) is None
    assert without_dependencies("/generate", '{"input_ids": [1]}') is None
    assert without_dependencies("/generate", "[[") is None


class FakeServer:
    """What a caller asks of a server; it always runs."""

    url = "http://test"
    is_ending = False
    is_running = True


def call(tmp_path: Path, status: int, body: str, **answers: int) -> tuple[Reply | None, Ledger]:
    """One request to a server that answers so, and otherwise to a body without `custom_params`."""
    ledger = Ledger(tmp_path / "faults.jsonl")

    def answer(request: httpx.Request) -> httpx.Response:
        has_dependencies = b"custom_params" in request.content
        return httpx.Response(status if has_dependencies else answers["plain"], text="{}")

    async def run() -> Reply | None:
        caller = Caller(FakeServer(), ledger)  # pyright: ignore[reportArgumentType]
        await caller.close()
        caller._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        return await caller.send("kind", "POST", "/generate", content=body)

    return asyncio.run(run()), ledger


def test_a_5xx_is_a_fault_unless_stock_has_it_too(tmp_path: Path) -> None:
    body = '{"text": "x", "custom_params": {"depcache_version": 1}}'
    reply, ledger = call(tmp_path, 500, body, plain=200)
    assert reply is not None and reply.status == 500
    assert ledger.num_faults("5xx") == 1
    kept = json.loads((tmp_path / "faults.jsonl").read_text().splitlines()[0])
    assert kept["request"]["body"] == body
    _, ledger = call(tmp_path, 500, body, plain=500)
    assert (ledger.num_faults("5xx"), len(ledger.stock)) == (0, 1)
    _, ledger = call(tmp_path, 400, body, plain=200)
    assert (len(ledger.faults), sum(ledger.refusals.values())) == (0, 1)


# -- the report ------------------------------------------------------------------------------------


def report_of(tmp_path: Path, ledger: Ledger | None = None, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "minutes": 1.0,
        "seed": 0,
        "leaked": 0,
        "growth": {"rss_growth_mb_per_hour": 1.0, "fd_growth": 0, "seconds_watched": 500.0},
        "ttft": {"p99_ttft_ms_start": 3.0, "p99_ttft_ms_end": 3.0},
        "kills": [{"how": "SIGKILL", "loaded_after": 7}],
        "restart_hits": 7,
        "stalls": [Stall("x", 200, 1.0, {"a stream": 30.0}, {}, 1)],
        "usual_ms": {"a stream": 10.0},
        "notes": {},
    }
    ledger = ledger or Ledger(tmp_path / "faults.jsonl")
    return make_report(ledger, Judge({}), **{**values, **changes})


def test_a_good_run_holds_the_bar_and_has_the_figures_that_were_promised(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert report["missed"] == []
    assert to_text(report).endswith("the bar is held")
    assert list(report)[:11] == [
        *("minutes", "requests", "judged", "wrong", "http_5xx", "leaked_tokens"),
        *("rss_growth_mb_per_hour", "fd_growth", "kills_survived", "restart_hits", "max_stall_ms"),
    ]
    assert (report["kills_survived"], report["max_stall_ms"]) == (1, 30.0)
    json.dumps(report)


@pytest.mark.parametrize("kind", ["wrong", "5xx", "died", "no answer", "refused", "held at rest"])
def test_a_fault_misses_the_bar_and_leaves_its_request(tmp_path: Path, kind: str) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl", phase="storm")
    ledger.fault(kind, "what happened", {"body": "x" * 10_000})
    report = report_of(tmp_path, ledger)
    assert len(report["missed"]) == 1
    assert len(json.dumps(report["faults"])) < 5000
    written = json.loads((tmp_path / "faults.jsonl").read_text())
    assert written["request"] == {"body": "x" * 10_000}
    assert written["phase"] == "storm"


def test_nobody_is_held_up_before_all_others_are_answered() -> None:
    probe = Probe("http://127.0.0.1:9")  # its process is not started
    users = ["a plain question", "a question about facts", "a look at the models"]
    for user in users:
        probe._queue.put(Gap(user, 2.0, 2.1))
    probe._queue.put(Gap("a stream", 0.5, 1.5))
    assert not probe.wait_for_users(1.0, 0.5)
    probe._queue.put(Gap("a stream", 1.5, 1.6))
    assert probe.wait_for_users(1.0, SLOWEST_S)


def test_leaks_growth_stalls_and_a_cold_restart_miss_the_bar(tmp_path: Path) -> None:
    growth = {"rss_growth_mb_per_hour": RSS_MB_PER_HOUR + 1, "seconds_watched": 600.0}
    stall = Stall("the whole tree", 200, 2.0, {"a stream": LIMIT_MS + 100}, {}, 3)
    kills = [{"how": "SIGTERM", "loaded_after": 0}]
    report = report_of(tmp_path, leaked=3, growth=growth, stalls=[stall], kills=kills)
    assert len(report["missed"]) == 4
    assert any("'the whole tree' held up a stream" in line for line in report["missed"])
    unsure = growth | {"rss_growth_mb_per_hour_error": 5.0}
    assert report_of(tmp_path, growth=unsure)["missed"] == []
    # A slope over seconds says nothing, and what was not measured is not missed.
    short = report_of(tmp_path, growth=growth | {"seconds_watched": 20.0}, stalls=[], kills=[])
    assert short["missed"] == [] and short["max_stall_ms"] is None
    assert find_missed(short) == []


@pytest.mark.sglang
@pytest.mark.parametrize(("missed", "code"), [([], 0), (["3 wrong answers"], 1)])
def test_the_exit_code_says_whether_the_bar_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missed: list[str], code: int
) -> None:
    report = report_of(tmp_path) | {"missed": missed}

    async def soak(*_: Any) -> dict[str, Any]:
        return report

    monkeypatch.setattr(command, "_soak", soak)
    file = tmp_path / "out.json"
    arguments = ["soak", "--minutes", "1", "--json", str(file), "--out", str(tmp_path / "logs")]
    assert main(arguments) == code
    assert json.loads(file.read_text())["missed"] == missed


@pytest.mark.sglang
def test_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--minutes", "0"]) == 2
    assert "--minutes is 0" in capsys.readouterr().err


def test_a_plan_takes_about_the_minutes_and_the_storm_most_of_them() -> None:
    for minutes in (15, 60):
        seconds = make_plan(minutes)
        assert set(seconds) == set(PHASES)
        assert sum(seconds.values()) <= minutes * 60
        assert seconds["storm"] == max(seconds.values())
    assert seconds["storm"] > 35 * 60
    assert make_plan(1)["storm"] == pytest.approx(24)  # however little is left
    assert make_plan(5, ["stalls"]).keys() == {"stalls"}
    assert set(ON_MAIN) < set(PHASES)


def test_the_p99_is_of_the_streams_of_that_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl")
    ledger.ttft_ms = [(float(i), float(i)) for i in range(200)]
    assert ledger.p99_ttft_ms(0, 101) == 99.0
    assert ledger.p99_ttft_ms(500, 600) is None


def test_a_request_is_a_suspect_only_while_it_is_under_way(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "faults.jsonl")
    with ledger.under_way({"route": "/a"}), ledger.under_way({"route": "/b"}):
        assert [one["route"] for one in ledger.suspects()] == ["/b", "/a"]
    assert ledger.suspects() == []


def test_a_small_disk_is_full_soon_and_can_be_made_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    try:
        with small_disk(folder) as set_read_only:
            (folder / "a").write_bytes(b"a")
            with pytest.raises(OSError):
                (folder / "b").write_bytes(bytes(10_000_000))
            set_read_only(True)
            with pytest.raises(OSError):
                (folder / "c").write_bytes(b"c")
    except MountError as error:
        pytest.skip(f"this machine does not let us mount: {error}")
    assert not (folder / "a").exists()


# -- a real one ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.timeout(900)
def test_a_storm_of_half_a_minute_on_a_real_server(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    arguments = ["soak", "--minutes", "0.5", "--only", "storm", "--json", str(file)]
    code = main([*arguments, "--out", str(tmp_path / "logs")])
    report = json.loads(file.read_text())
    assert code == 0, (report["missed"], report["faults"][:3])
    assert report["judged"] > 20
    assert report["judged_how"][EXACT] > 5
    assert report["seen"]["rests"] >= 1
    assert report["worst_logprob_error"] < TOLERANCE
    assert (tmp_path / "logs" / "main-1.log").is_file()
