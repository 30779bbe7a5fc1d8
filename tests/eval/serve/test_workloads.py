# SPDX-License-Identifier: Apache-2.0
"""Workloads are the same for the same spec, and prompts are written for each system as it says."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depcache.errors import ConfigError
from eval.serve.arrivals import poisson, read_trace
from eval.serve.export import export
from eval.serve.systems import KNOWN, Writer, get_system, make_server
from eval.serve.workloads import ServeSpec, Workload, entities_of, fit, make
from eval.sets import SetError
from eval.tables.agents import INSTRUCTIONS
from eval.workloads.graphs import Graphs
from tests.eval.tables.made import write_set
from tests.helpers.rendered import paths_of

pytestmark = pytest.mark.sglang  # transformers comes with the server

SPEC = ServeSpec("zipfian:demo", 12, num_entities=3, num_paths=8, pool=40)


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return Graphs(None)


@pytest.fixture(scope="module")
def workload(graphs: Graphs) -> Workload:
    return make(SPEC, graphs)


@pytest.fixture(scope="module")
def writer(model_path: Any) -> Writer:
    from transformers import AutoTokenizer

    return Writer(AutoTokenizer.from_pretrained(model_path("llama_gqa")), "path")


def test_equal_specs_are_equal_workloads(graphs: Graphs, workload: Workload) -> None:
    again = make(SPEC, graphs)
    assert again.requests == workload.requests and again.digest() == workload.digest()
    other = make(replace(SPEC, seed=1), graphs)
    assert other.digest() != workload.digest()
    assert len(workload.requests) == 12
    for request in workload.requests:
        assert len(set(request.entities)) == 3
        assert {path[0] for path in request.paths} <= set(request.entities)
        assert len(request.paths) <= 3 * 8
        assert all(3 <= len(path) <= 5 for path in request.paths)
    assert len(entities_of(workload.requests)) == len(
        {name for request in workload.requests for name in request.entities}
    )


def test_questions_come_with_their_answers(graphs: Graphs) -> None:
    made = make(ServeSpec("questions:demo", 50, num_hops=3), graphs)
    assert len(made.requests) == 50
    assert len({request.question for request in made.requests}) == 40
    assert all(request.answers and request.paths for request in made.requests)


@pytest.mark.parametrize("num_tokens", [400, 1500])
def test_prompts_have_about_the_asked_size(graphs: Graphs, writer: Writer, num_tokens: int) -> None:
    asked = ServeSpec(f"uniform:demo:{num_tokens}", 40, pool=100)
    fitted = fit(asked, graphs, writer.num_flat_tokens)
    sizes = [writer.num_flat_tokens(request) for request in make(fitted, graphs).requests]
    assert sum(sizes) / len(sizes) == pytest.approx(num_tokens, rel=0.3)
    plain = replace(asked, name="uniform:demo")
    assert fit(plain, graphs, writer.num_flat_tokens) == plain


@pytest.mark.parametrize("name", ["zipfian:demo:many", "zipfian:demo:0", "questions:demo:1000"])
def test_a_size_that_is_none_is_an_error(graphs: Graphs, name: str) -> None:
    with pytest.raises(SetError, match="number of tokens"):
        fit(ServeSpec(name, 2), graphs, lambda request: 1)


@pytest.mark.parametrize("name", ["zipfian:nowhere", "often:demo", "zipfian"])
def test_what_does_not_exist_is_an_error(graphs: Graphs, name: str) -> None:
    with pytest.raises(SetError, match=r"there is no graph|is no workload"):
        make(ServeSpec(name, 2), graphs)


def test_each_system_gets_the_same_facts_in_its_own_way(workload: Workload, writer: Writer) -> None:
    request = workload.requests[0]
    trees = writer.write(get_system("depcache"), request).fields
    flat = writer.write(get_system("sglang"), request).fields
    assert trees["messages"] == flat["messages"]
    assert "extra_body" not in flat
    body = {"messages": trees["messages"], **trees["extra_body"]}
    assert paths_of(body) == list(request.paths)
    staggered = writer.write(get_system("depcache-staggered"), request).fields
    assert staggered["extra_body"]["custom_params"]["depcache_layout"] == "staggered"
    merged = writer.write(get_system("sglang-dedup"), request)
    assert merged.route == "completions"
    sizes = writer.sizes(request)
    assert len(merged.fields["prompt"]) == sizes.merged_tokens < sizes.flat_tokens
    nothing = writer.write(get_system("norag"), request).fields["messages"]
    assert nothing[-1]["content"] == request.question


@pytest.fixture
def chunks(tmp_path: Path) -> Graphs:
    """Four requests of three chunks out of five; the trace has their texts, of nq only counts."""
    (tmp_path / "chunks").mkdir()
    for name, told in (("musique", "text"), ("nq", "words")):
        with gzip.open(tmp_path / "chunks" / f"retrieval_{name}_chunks.jsonl.gz", "wt") as out:
            for i in range(5):
                value = f"Title {i}\nText of chunk {i}." if told == "text" else 6
                out.write(json.dumps({"cid": i, told: value}) + "\n")
        (tmp_path / "chunks" / f"retrieval_{name}_requests.jsonl").write_text(
            "".join(json.dumps({"chunks": [i, i + 1, 4 - i]}) + "\n" for i in (0, 1, 3, 0))
        )
    return Graphs(tmp_path)


def test_chunks_are_asked_about_in_the_order_of_a_stream(chunks: Graphs, writer: Writer) -> None:
    made = make(ServeSpec("chunks:musique:file-order", 4), chunks)
    assert made.store is None
    assert [each.entities for each in made.requests][:2] == [("0", "1", "4"), ("1", "2", "3")]
    assert len({each.question for each in made.requests}) == 4
    request = made.requests[0]
    assert request.passages[1] == "Title 1\nText of chunk 1."
    assert request.by_heat == tuple(request.passages[i] for i in (1, 2, 0))  # 4, 3, and 2 times

    flat = writer.write(get_system("sglang"), request).fields
    fused = writer.write(get_system("depcache-fused-15"), request).fields
    assert fused["messages"] == flat["messages"]
    params = fused["extra_body"]["custom_params"]
    assert params["depcache_recompute"] == 0.15 and params["depcache_see"] == "fused"
    mixed = writer.write(get_system("depcache-fused-mixed-5"), request).fields["extra_body"]
    assert mixed["custom_params"]["depcache_select"] == "mixed"
    assert mixed["custom_params"]["depcache_recompute"] == 0.05
    stored = writer.write(get_system("depcache-stored"), request).fields["extra_body"]
    assert stored["custom_params"]["depcache_select"] == "stored"
    alone = writer.write(get_system("depcache"), request).fields["extra_body"]["custom_params"]
    assert alone["depcache_layout"] == "tree" and "depcache_see" not in alone
    text = writer.write(get_system("sglang-sorted"), request).fields["messages"][-1]["content"]
    assert text.index("chunk 1") < text.index("chunk 4") < text.index("chunk 0")
    nothing = writer.write(get_system("norag"), request).fields["messages"]
    assert nothing[-1]["content"] == request.question
    with pytest.raises(ConfigError, match="passages are no trees"):
        writer.write(get_system("sglang-dedup"), request)
    assert len(make(ServeSpec("chunks:musique", 50), chunks).requests) == 50


@pytest.mark.parametrize(
    ("name", "number", "error", "words"),
    [
        ("chunks:musique:backwards", 2, SetError, "no stream of chunks: use file-order"),
        ("chunks:musique:file-order", 9, SetError, "has 4 requests in file order"),
        ("chunks:nq", 2, SetError, "0 texts"),
        ("chunks:popqa", 2, ConfigError, "holds no requests of chunks 'popqa'"),
    ],
)
def test_chunks_that_are_not_there_are_an_error(
    chunks: Graphs, name: str, number: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(ServeSpec(name, number), chunks)


def test_chunks_need_a_folder(graphs: Graphs) -> None:
    with pytest.raises(SetError, match="with --data"):
        make(ServeSpec("chunks:musique", 2), graphs)


@pytest.fixture
def schemas(tmp_path: Path) -> Graphs:
    for name in ("spider", "bird"):
        write_set(tmp_path, name)
    return Graphs(tmp_path)


def test_tables_are_asked_about_in_every_order(schemas: Graphs, writer: Writer) -> None:
    spec = ServeSpec("lake:sql:4:closed", 20)
    assert spec.num_tokens is None
    made = make(spec, schemas)
    assert made.digest() == make(spec, schemas).digest()
    orders = set()
    for request in made.requests:
        texts = [table.text for table in request.tables]
        assert len(set(texts)) == len(texts) == len(request.entities)
        assert sorted(request.declared) == sorted(texts) == sorted(request.by_heat)
        orders.add(request.declared == tuple(texts))
        sent = {
            name: writer.write(get_system(name), request).fields
            for name in ("depcache", "sglang", "sglang-declared", "vllm-declared", "sglang-sorted")
        }
        for name, wanted in (
            ("sglang", tuple(texts)),
            ("sglang-declared", request.declared),
            ("vllm-declared", request.declared),
            ("sglang-sorted", request.by_heat),
        ):
            said = sent[name]["messages"][-1]["content"]
            assert "extra_body" not in sent[name]
            assert sorted(wanted, key=said.index) == list(wanted)
            assert said.endswith(f"Question: {request.question}")
        ours = sent["depcache"]["messages"][-1]["content"]
        assert sorted(ours) == sorted(said)  # the same text in another order
        assert "depcache_outline" in sent["depcache"]["extra_body"]["custom_params"]
    assert False in orders
    with pytest.raises(ConfigError, match="tables are no trees"):
        writer.write(get_system("sglang-dedup"), made.requests[0])


@pytest.mark.parametrize("kind", ["agents", "agents-behind"])
def test_agents_call_three_times_about_a_question(
    schemas: Graphs, writer: Writer, kind: str
) -> None:
    made = make(ServeSpec(f"{kind}:whole:bird", 9), schemas)
    assert made.catalog is None  # nothing of another system message is computed ahead
    calls = [made.requests[at : at + 3] for at in range(0, 9, 3)]
    for three in calls:
        link, write, repair = three
        assert {*write.entities} == {*repair.entities} and {*write.entities} <= {*link.entities}
        for each, told in zip(three, INSTRUCTIONS.values(), strict=True):
            for name in ("depcache", "sglang-declared"):
                messages = writer.write(get_system(name), each).fields["messages"]
                user = messages[-1]["content"]
                if kind == "agents":
                    assert messages[0] == {"role": "system", "content": told}
                    assert told not in user
                else:
                    assert len(messages) == 1
                    assert 0 < user.index("CREATE TABLE") < user.index(told)
    texts = {request.question.splitlines()[-1] for three in calls for request in three}
    assert len(texts) == 3


def test_a_digest_does_not_depend_on_what_a_workload_does_not_have(schemas: Graphs) -> None:
    # It is that of reports from before requests had a system message, which are joined by it.
    made = make(ServeSpec("whole:bird", 2), schemas)
    sent = [asdict(each) for each in made.requests]
    assert all(each.pop("system") is None for each in sent)
    text = json.dumps([asdict(made.spec), sent])
    assert made.digest() == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_tables_need_a_folder_and_a_form(graphs: Graphs, schemas: Graphs) -> None:
    with pytest.raises(SetError, match="with --data"):
        make(ServeSpec("whole:bird", 2), graphs)
    with pytest.raises(SetError, match="no workload of tables"):
        make(ServeSpec("lake:bird", 2), schemas)
    with pytest.raises(SetError, match="no workload of tables"):
        make(ServeSpec("agents:lake:bird", 2), schemas)


def test_pairs_are_those_of_the_mask(workload: Workload, writer: Writer) -> None:
    request = workload.requests[1]
    sizes = writer.sizes(request)
    n = sizes.merged_tokens
    assert sizes.merged_pairs == n * (n + 1) // 2

    forest = writer.merge(request).forest
    ends = forest.structure.ends
    index = np.arange(n)
    sees = (index[None] <= index[:, None]) & (
        (index[:, None] < ends[None]) | (index[:, None] >= forest.task_start)
    )
    assert sizes.dependency_pairs == sees.sum()


def test_every_system_has_a_launch(tmp_path: Path) -> None:
    for system in KNOWN.values():
        python = tmp_path / "python"
        launch = make_server(system, "m", 1234, pool_tokens=1000, vllm_python=python)
        assert "1234" in launch.argv and "m" in launch.argv
        assert ("depcache" in launch.argv) == (system.engine == "depcache")
        assert (launch.argv[0] == str(python)) == (system.engine == "vllm")
    lru = make_server(KNOWN["depcache-lru"], "m", 1, pool_tokens=9, vllm_python=None)
    assert lru.argv.count("--radix-eviction-policy") == 1 and "lru" in lru.argv


def test_an_exported_file_is_what_openai_takes(
    workload: Workload, writer: Writer, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    export(workload.requests, get_system("depcache"), writer, 8, file)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert line["max_tokens"] == 8
        assert [message["role"] for message in line["messages"]] == ["system", "user"]
        assert "depcache_outline" in line["custom_params"]


def test_poisson_arrivals_come_at_their_rate() -> None:
    times = poisson(4.0, 4000, seed=3)
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.1)
    assert times == poisson(4.0, 4000, seed=3) != poisson(4.0, 4000, seed=4)
    with pytest.raises(ValueError, match="the rate is 0"):
        poisson(0, 3)


def test_traces_are_read_and_scaled(tmp_path: Path) -> None:
    mooncake = tmp_path / "trace.jsonl.gz"
    with gzip.open(mooncake, "wt") as out:
        for ms in (500, 1500, 1500, 4500):
            out.write(json.dumps({"timestamp": ms, "input_length": 9}) + "\n")
    assert read_trace(mooncake, 4) == [0.0, 1.0, 1.0, 4.0]
    assert read_trace(mooncake, 4, rate=1.5) == [0.0, 0.5, 0.5, 2.0]
    azure = tmp_path / "trace.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    assert read_trace(azure, 2) == [0.0, pytest.approx(4.314579)]
    with pytest.raises(SetError, match="has 2 requests"):
        read_trace(azure, 3)
    (tmp_path / "other.jsonl").write_text("[1]\n")
    with pytest.raises(SetError, match="is no trace"):
        read_trace(tmp_path / "other.jsonl", 1)
