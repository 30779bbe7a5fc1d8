# SPDX-License-Identifier: Apache-2.0
"""One real server, started by `depcache serve`, and everybody who talks to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from depcache.client import Client, graph_context, httpx_client
from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import render
from depcache.serving.random_model import ensure_model, is_trained
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_serve

pytestmark = pytest.mark.sglang

PATHS = [
    ("Marie Curie", "born in", "Warsaw", "located in", "Poland"),
    ("Marie Curie", "won", "Nobel Prize in Physics"),
    ("Danube", "flows into", "Black Sea"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ensure_model(tmp_path_factory.mktemp("model") / "demo")


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with start_serve(model, log=log, by_command=True) as url:
        yield url


@pytest.fixture
def client(url):
    with Client(url, timeout_s=SLOWEST_S) as client:
        yield client


def run(*arguments, url=None):
    env = {**os.environ, **({"DEPCACHE_SERVER": url} if url else {})}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=SLOWEST_S, env=env)


def depcache(*arguments, url=None):
    return run(sys.executable, "-m", "depcache.cli.main", *arguments, url=url)


def test_the_model_says_that_it_is_not_trained_and_is_made_once(model):
    assert not is_trained(model)
    stamp = (model / "config.json").stat().st_mtime_ns
    assert ensure_model(model) == model
    assert (model / "config.json").stat().st_mtime_ns == stamp


def test_the_status_says_that_all_is_in_place(client):
    status = client.status()
    assert status["active"] is True
    assert all(status["seams"].values())
    assert all(status["hooks"].values())
    assert status["cache"]["capacity_tokens"] > 0


def test_a_second_question_reuses_the_facts_in_another_order(client):
    first = client.ask(PATHS, "Where was Marie Curie born?", max_tokens=4)
    second = client.ask(PATHS[::-1], "What did Marie Curie win?", max_tokens=4)
    assert first.depcache.reused + first.depcache.missed == first.depcache.context_tokens
    assert second.depcache.context_tokens == first.depcache.context_tokens
    assert second.depcache.missed == 0
    assert second.usage.cached_tokens >= second.depcache.shared > 0


def test_a_stream_gives_the_same_text_and_a_report(client):
    whole = client.ask(PATHS, "Why?", max_tokens=8)
    stream = client.ask(PATHS, "Why?", max_tokens=8, stream=True)
    pieces = "".join(stream)
    reply = stream.finish()
    assert pieces == reply.text == whole.text
    assert reply.depcache is not None
    assert reply.depcache.missed == 0
    assert reply.ttft_s is not None
    assert 0 < reply.ttft_s <= reply.total_s
    assert reply.usage.prompt_tokens == whole.usage.prompt_tokens


def test_generate_takes_a_dependency_prompt_in_every_layout(client, model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    for layout in ("tree", "staggered", "sequential"):
        prompt = DepPrompt.from_paths(
            PATHS, tokenizer=tokenizer, system="Facts:", task="\nWhy?", layout=layout
        )
        reply = client.generate(prompt, max_tokens=4, ignore_eos=True)
        assert reply.depcache.layout == layout
        assert reply.usage.prompt_tokens == prompt.num_tokens
        assert len(reply.token_ids) == 4
        assert client.generate(prompt, max_tokens=4, ignore_eos=True).text == reply.text


def test_explain_agrees_with_the_answer_that_follows(client):
    prompt = render([("Vienna", "capital of", "Austria"), *PATHS], "Which?")
    explained = client.explain(prompt)
    reply = client.chat(prompt.messages, max_tokens=1, **prompt.extra_body)
    assert explained["missed"] == reply.depcache.missed > 0
    assert explained["shared"] == reply.depcache.shared
    assert explained["prompt_tokens"] == reply.usage.prompt_tokens
    texts = [row["text"] for row in explained["table"]]
    assert any("Vienna" in text for text in texts)


def test_a_malformed_prompt_is_a_prompt_error_with_the_reason(client):
    with pytest.raises(PromptError, match="depcache_version"):
        client.chat([{"role": "user", "content": "x"}], custom_params={"depcache_version": 99})


def test_the_openai_sdk_gets_dependency_prompts_through_the_transport(url):
    openai = pytest.importorskip("openai")
    with httpx_client(merge=True) as http:
        sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="-", http_client=http, max_retries=0)
        lines = "\n".join(" -> ".join(path) for path in PATHS)
        messages = [{"role": "user", "content": f"Facts:\n{lines}\n\nWhere?"}]
        found = sdk.chat.completions.create(model="default", messages=messages, max_tokens=4)
        with graph_context(PATHS) as facts:
            messages = [{"role": "user", "content": f"Facts:{facts}\n\nWhere?"}]
            chunks = list(
                sdk.chat.completions.create(
                    model="default", messages=messages, max_tokens=4, stream=True
                )
            )
        completion = sdk.completions.create(
            model="default", prompt=f"Facts:\n{lines}\n\nWhere?", max_tokens=4
        )
    first = found.model_extra["metadata"]["depcache"]
    [last] = [c.model_extra["metadata"] for c in chunks if "metadata" in (c.model_extra or {})]
    assert first["context_tokens"] == last["depcache"]["context_tokens"] > 0
    assert last["depcache"]["missed"] == 0
    assert completion.model_extra["metadata"]["depcache"]["layout"] == "tree"


# commands


def test_doctor_finds_this_machine_and_the_server_in_order(url):
    done = depcache("doctor", "--json", "--server", url)
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if check["state"] == "problem"] == []
    assert done.returncode == 0
    assert report["checks"][-1]["name"] == "server"


def test_status_and_explain_talk_to_the_server(url, tmp_path):
    assert json.loads(depcache("status", "--json", url=url).stdout)["active"] is True
    file = tmp_path / "paths.tsv"
    file.write_text("\n".join("\t".join(path) for path in PATHS))
    done = depcache("explain", "Where?", "--paths", str(file), url=url)
    assert done.returncode == 0, done.stderr
    assert "Danube" in done.stdout
    assert "trees 2" in done.stdout


# graphs


def test_a_graph_is_built_with_our_own_server_whatever_its_model_says(url, tmp_path):
    # Random weights: what the model says is noise, held to the schema and cut off. It must be
    # left out and counted, or be triples.
    pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
    for name, text in (("a.txt", "Marie Curie was born in Warsaw."), ("b.txt", "Ulm. " * 30)):
        (tmp_path / name).write_text(text)
    arguments = ["graph", "build", tmp_path / "a.txt", tmp_path / "b.txt", "--server", url]
    arguments += ["--graph", "networkx:", "--state", tmp_path / "state.jsonl"]
    arguments += ["--max-tokens", 48, "--chunk-tokens", 40, "--json"]
    done = depcache(*map(str, arguments))
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["triples"] else 1), done.stderr
    assert answer["chunks"] == 3 and answer["resumed"] == 0
    assert len(answer["problems"]) == answer["bad_chunks"] + answer["dropped_triples"]
    state = [json.loads(line) for line in (tmp_path / "state.jsonl").read_text().splitlines()]
    assert len(state) == 3
    assert sum("problem" in row for row in state) == answer["bad_chunks"]
    again = json.loads(depcache(*map(str, arguments)).stdout)
    assert again["retried"] == again["bad_chunks"] == answer["bad_chunks"]
    assert again["resumed"] == 3 - answer["bad_chunks"]


# precompute


TRIPLES = Path(__file__).parents[3] / "depcache" / "demo" / "wellknown" / "triples.tsv"


def precompute(url, *arguments):
    done = depcache(
        *("precompute", "--graph", str(TRIPLES), "--json", *map(str, arguments)), url=url
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_questions_about_precomputed_entities_miss_nothing(url, tmp_path):
    pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
    names = ["Marie Curie", "Albert Einstein", "Danube"]
    arguments = ["--pruner", "none", "--state", tmp_path / "state.jsonl"]
    arguments += [part for name in names for part in ("--entity", name)]
    estimate = precompute(url, *arguments, "--estimate")["estimate"]
    first = precompute(url, *arguments)
    assert (first["computed"], first["failed"]) == (3, 0)
    context = first["tokens_computed"] + first["tokens_cached"]
    assert first["tokens_computed"] > 0
    # The estimate counts all three, and no system, which the first request may compute.
    assert 0.9 * estimate["tokens"] < context < 1.1 * estimate["tokens"] + 200
    assert first["bytes"] == first["tokens_computed"] * estimate["bytes_per_token"]
    again = precompute(url, *arguments)
    assert (again["computed"], again["resumed"], again["requests"]) == (0, 3, 0)
    assert again["estimate"]["cached_tokens"] == again["estimate"]["tokens"]
    for question in ("When was Albert Einstein at the Danube?", "Who was Marie Curie?"):
        ask = ["ask", question, "--graph", str(TRIPLES), "--pruner", "none", "--json"]
        report = json.loads(depcache(*ask, "--max-tokens", "2", url=url).stdout)
        assert set(report["entities"]) <= set(names)
        assert report["depcache"]["missed"] == 0
        assert report["depcache"]["shared"] == report["depcache"]["context_tokens"] > 100


def test_what_a_question_picks_of_a_precomputed_neighbourhood_misses_nothing(url, client, tmp_path):
    pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
    from depcache.graph.retrieval import Retriever

    system = "Answer with a name."
    arguments = ["--entity", "Vienna", "--pruner", "words", "--system", system]
    report = precompute(url, *arguments, "--state", tmp_path / "state", "--request-tokens", 200)
    assert report["computed"] == 1 and report["requests"] > 1
    retriever = Retriever(TRIPLES, pruner="words")
    for question in ("Who died in Vienna?", "Which river flows through Vienna?"):
        found = retriever.retrieve(question, num_paths=5)
        assert found.entities == ("Vienna",)
        reply = client.ask(found.paths, question, system=system, max_tokens=1)
        assert reply.depcache.missed == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_half_way_is_resumed(url, client, tmp_path, how):
    state = tmp_path / "state.jsonl"
    # A system of its own, so that nothing is cached yet; small requests, so that there are many.
    system = f"Facts, please. {how.name}"
    arguments = ["--entities", "top:30", "--pruner", "none", "--paths", 3, "--state", state]
    arguments += ["--request-tokens", 1, "--concurrency", 2, "--system", system]
    command = [sys.executable, "-m", "depcache.cli.main", "precompute", "--graph", TRIPLES]
    env = {**os.environ, "DEPCACHE_SERVER": url}
    process = subprocess.Popen(
        list(map(str, [*command, *arguments])),
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in the background of a shell ignores interrupts, and so would its child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + SLOWEST_S
    while not state.exists() or len(state.read_text().splitlines()) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(how)
    _, error = process.communicate(timeout=SLOWEST_S)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "of 30 entities are done" in error and "Traceback" not in error
    rows = [json.loads(line) for line in state.read_text().split("\n")[1:-1]]
    assert 1 <= len(rows) < 30
    report = precompute(url, *arguments)
    assert (report["resumed"], report["computed"]) == (len(rows), 30 - len(rows))
    assert precompute(url, *arguments)["requests"] == 0
    assert client.stats()["tiers"]["device"]["evicted"] == 0
