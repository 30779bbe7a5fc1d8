# SPDX-License-Identifier: Apache-2.0
"""One real server, started by `depcache serve`, and everybody who talks to it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from depcache.cli.launch import Launch
from depcache.client import Client, graph_context, httpx_client
from depcache.demo.model import ensure_model, is_trained
from depcache.demo.server import ServerProcess, find_free_port
from depcache.errors import PromptError
from depcache.prompt.nodes import DepPrompt
from depcache.prompt.render import render

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[3] / "examples"
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
    port = find_free_port()
    argv = [sys.executable, "-m", "depcache.cli.main", "serve", str(model), "--port", str(port)]
    argv += ["--host", "127.0.0.1", "--max-total-tokens", "16384", "--skip-server-warmup"]
    launch = Launch([*argv, "--log-level", "warning"])
    url, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(launch, url, log) as server:
        server.wait_until_ready(timeout_s=300)
        yield url


@pytest.fixture
def client(url):
    with Client(url, timeout_s=120) as client:
        yield client


def run(*arguments, url=None, timeout=300):
    env = {**os.environ, **({"DEPCACHE_SERVER": url} if url else {})}
    return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, env=env)


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
    with httpx_client() as http:
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


# examples


@pytest.mark.parametrize(
    "name", ["01_python_client.py", "02_openai_sdk.py", "03_httpx_transport.py", "05_frontend.py"]
)
def test_an_example_runs(name, url):
    done = run(sys.executable, str(EXAMPLES / name), url=url)
    assert done.returncode == 0, done.stderr
    assert "answer:" in done.stdout
    assert "missed" in done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_example_runs(url):
    done = run("bash", str(EXAMPLES / "06_curl.sh"), url=url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"missed"') >= 3


@pytest.mark.slow
def test_the_engine_example_runs(model):
    done = run(sys.executable, str(EXAMPLES / "04_engine.py"), str(model))
    assert done.returncode == 0, done.stderr
    assert "then: {" in done.stdout


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
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["chunks"] == 3 and answer["resumed"] == 0
    assert len(answer["problems"]) == answer["bad_chunks"] + answer["dropped_triples"]
    state = [json.loads(line) for line in (tmp_path / "state.jsonl").read_text().splitlines()]
    assert len(state) == 3
    assert sum("problem" in row for row in state) == answer["bad_chunks"]
    again = json.loads(depcache(*map(str, arguments)).stdout)
    assert again["resumed"] == 3 and again["bad_chunks"] == answer["bad_chunks"]
