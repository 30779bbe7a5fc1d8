# SPDX-License-Identifier: Apache-2.0
"""`depcache precompute`: what it prints, what `--json` gives, and its exit codes."""

from __future__ import annotations

import json

import httpx
import pytest

from depcache.cli import precompute as command
from depcache.prompt.render import DEFAULT_CHUNK_SYSTEM
from tests.depcache.precompute.fake import FakeCache, refused

LINES = [f"e{i}\tr\te{j}" for i in range(6) for j in range(i)]


@pytest.fixture
def precompute(call, tmp_path):
    """`precompute("--entity", "e1")` runs the command on a small graph."""
    graph = tmp_path / "facts.tsv"
    graph.write_text("\n".join(LINES))
    fixed = ["--graph", graph, "--state", tmp_path / "state.jsonl", "--pruner", "none"]
    return lambda *arguments: call("precompute", *fixed, *arguments)


@pytest.fixture
def server(monkeypatch):
    fake = FakeCache()
    fake.take_place(monkeypatch, command)
    return fake


def test_an_estimate_computes_nothing(precompute, server, tmp_path):
    code, out, err = precompute("--estimate")
    assert (code, err) == (0, "")
    assert "entities  6" in out and "bytes a token" in out and "room for 10,000 tokens" in out
    assert server.sent == [] and not (tmp_path / "state.jsonl").exists()
    code, out, _ = precompute("--estimate", "--json", "--entities", "top:2")
    answer = json.loads(out)["estimate"]
    assert (answer["entities"], answer["done"], answer["cached_tokens"]) == (2, 0, 0)
    assert answer["bytes"] == answer["tokens"] * 100 > 0


def test_too_much_for_all_tiers_is_a_warning(precompute, server):
    server.capacity_tokens = 20
    code, out, _ = precompute("--estimate")
    assert code == 0
    assert "warning: about" in out and "entities (--entities top:N)" in out


def test_a_run_reports_and_the_next_has_nothing_to_do(precompute, server):
    code, out, _ = precompute("--json")
    first = json.loads(out)
    assert code == 0
    assert (first["entities"], first["computed"], first["failed"]) == (6, 6, 0)
    assert first["bytes"] == first["tokens_computed"] * 100
    num_sent = len(server.sent)
    code, out, _ = precompute()
    assert code == 0 and "6 entities were done before" in out
    assert "0 tokens computed" in out
    assert len(server.sent) == num_sent


def test_entities_are_named_one_by_one_or_in_a_file(precompute, server, tmp_path):
    names = tmp_path / "names"
    names.write_text("e1\ne2\n")
    for arguments, expected in (
        (["--entity", "e3", "--entity", "e4"], 2),
        (["--entities", f"file:{names}"], 2),
        (["--entity", "e0", "--entities", f"file:{names}"], 1),  # two are done
    ):
        assert json.loads(precompute(*arguments, "--json")[1])["computed"] == expected


def test_what_is_left_out_is_named(precompute, server, tmp_path):
    names = tmp_path / "names"
    names.write_text("e2\nnobody\n")
    server.on_chat = lambda paths: refused() if any(p[0] == "e2" for p in paths) else None
    code, out, _ = precompute("--entity", "e1", "--entities", f"file:{names}")
    assert code == 0
    assert "2 entities were left out: refused 1, unknown 1" in out
    assert "e2: the server refused" in out and "nobody: the graph has no such entity" in out


def test_an_entity_that_the_graph_has_not_is_an_error(precompute, server, tmp_path):
    pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")
    code, out, err = precompute("--entity", "e1", "--entity", "e9")
    assert (code, out, server.sent) == (2, "", [])
    assert "has no entity 'e9': check the name" in err and err.count("\n") == 1
    graph = tmp_path / "names.tsv"
    graph.write_text("Ann Lee\tis in\tOslo\n")
    code, _, err = precompute("--graph", graph, "--entity", "Anne Lee")
    assert code == 2 and "the nearest names are 'Ann Lee'" in err
    names = tmp_path / "names"
    names.write_text("nobody\nnoone\n")
    code, _, err = precompute("--entities", f"file:{names}")
    assert (code, server.sent) == (2, []) and "none of the 2 entities" in err


def test_a_server_that_is_gone_is_exit_code_3_and_the_state_is_kept(
    precompute, server, monkeypatch
):
    monkeypatch.setattr("depcache.precompute.job.RETRY_DELAYS_S", ())
    calls = []

    def fail(paths):
        calls.append(paths)
        if len(calls) > 2:
            raise httpx.ConnectError("refused")

    server.on_chat = fail
    arguments = ["--request-tokens", "1", "--concurrency", "1", "--entities", "all"]
    code, _, err = precompute(*arguments)
    assert code == 3
    assert err.startswith("depcache: ") and err.count("\n") == 1
    assert "cannot be reached" in err and "the same command again" in err
    server.on_chat = lambda paths: None
    assert json.loads(precompute(*arguments, "--json")[1])["failed"] == 0


def test_an_interrupt_is_exit_code_130_and_says_what_is_done(precompute, server):
    def interrupt(paths):
        if len(server.sent) == 8:
            raise KeyboardInterrupt

    server.on_chat = interrupt
    code, _, err = precompute("--request-tokens", "1", "--concurrency", "1")
    assert code == 130
    assert "of 6 entities are done, the same command again" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--entities", "best"], "no choice of entities"),
        (["--system", "x", "--system-file", "y"], "leave out one"),
        (["--system-file", "/no/such/file"], "cannot read"),
        (["--messages", "/no/such/file"], "cannot read"),
        (["--layout", "spiral"], "layout"),
        (["--pruner", "best"], "no way to prune"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(precompute, server, arguments, word):
    code, out, err = precompute(*arguments)
    assert (code, out) == (2, "")
    assert word in err and err.count("\n") == 1


def test_the_system_comes_from_a_file_to_the_letter(precompute, server, tmp_path):
    file = tmp_path / "system"
    file.write_text(" Be brief.\n")
    assert precompute("--system-file", file)[0] == 0
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": " Be brief.\n"}
    code, out, _ = precompute("--system", "")
    assert code == 0 and "starting anew: system not the same as before" in out
    assert [m["role"] for m in server.bodies[-1]["messages"]] == ["user"]


def test_the_messages_of_another_program_are_read_from_a_file(precompute, server, tmp_path):
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": "About:{{graph_context}}\nQ"}]))
    assert precompute("--messages", file, "--salt", "tenant")[0] == 0
    assert server.bodies[0]["messages"][0]["content"].startswith("About:\ne")
    assert server.bodies[0]["cache_salt"] == "tenant"
    file.write_text("{}")
    code, _, err = precompute("--messages", file)
    assert code == 2 and "no list of messages" in err


def test_progress_is_shown_on_stderr(precompute, server, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = precompute("--json")
    assert code == 0 and json.loads(out)["computed"] == 6
    assert "tokens/s" in err and "left" in err


# chunks of text


@pytest.fixture
def chunks(tmp_path):
    file = tmp_path / "chunks.jsonl"
    rows = [{"id": f"a-{n}", "text": f"Text {n}."} for n in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_chunks_of_a_file_go_the_same_way(call, server, chunks, tmp_path):
    fixed = ["precompute", "--chunks", chunks, "--state", tmp_path / "chunks-state.jsonl"]
    code, out, err = call(*fixed, "--estimate")
    assert (code, err, server.sent) == (0, "", [])
    assert "chunks  5" in out and "paths" not in out
    first = json.loads(call(*fixed, "--json", "--salt", "tenant")[1])
    assert (first["chunks"], first["computed"], first["file"]) == (5, 5, str(chunks))
    assert server.bodies[0]["cache_salt"] == "tenant"
    assert server.bodies[0]["messages"][0]["content"] == DEFAULT_CHUNK_SYSTEM
    code, out, _ = call(*fixed, "--salt", "tenant")
    assert code == 0 and "5 chunks were done before" in out


@pytest.mark.parametrize(
    "arguments", [["--graph", "facts.db"], ["--entities", "all"], ["--hops", "2"], ["--paths", "3"]]
)
def test_options_of_graphs_are_refused_beside_chunks(call, server, chunks, arguments):
    code, out, err = call("precompute", "--chunks", chunks, *arguments)
    assert (code, out) == (2, "")
    assert f"{arguments[0]} is of graphs: leave it out beside --chunks" in err


def test_a_line_that_is_no_chunk_is_named(call, server, chunks):
    chunks.write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n')
    code, _, err = call("precompute", "--chunks", chunks)
    assert code == 2 and "line 2 of" in err and err.count("\n") == 1
