# SPDX-License-Identifier: Apache-2.0
"""`depcache invalidate`: what it prints, what `--json` gives, and its exit codes."""

from __future__ import annotations

import json

import httpx
import pytest

from depcache.cli import invalidate as command
from depcache.client import Client
from depcache.precompute import GraphSource, Precomputer, PrecomputeSettings
from tests.depcache.precompute.fake import FakeCache, refused

NAMES = [f"n{i}" for i in range(8)]
LINES = [f"n{i}\tnext\tn{i + 1}\n" for i in range(7)]


@pytest.fixture
def graph(tmp_path):
    file = tmp_path / "facts.tsv"
    file.write_text("".join(LINES))
    return file


@pytest.fixture
def server(monkeypatch, graph, tmp_path):
    """One that has the trees of all entities, by `state.jsonl`."""
    from depcache.graph import open_store

    fake = FakeCache()
    http = fake.take_place(monkeypatch, command)
    settings = PrecomputeSettings(pruner="none")
    source = GraphSource(open_store(graph), settings)
    job = Precomputer(source, Client(http_client=http), state=tmp_path / "state.jsonl")
    job.run(job.plan(NAMES))
    return fake


def entities_of(server):
    return {path[0] for path in server.cached if path}


def test_a_dry_run_names_the_entities_and_asks_no_server(call, server, graph, tmp_path):
    arguments = ["invalidate", "--graph", graph, "--entity", "n3", "--dry-run"]
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    assert out == "n2\nn3\nn4\n3 entities are affected\n"
    code, out, _ = call(*arguments, "--entity", "nobody", "--state", tmp_path / "state.jsonl")
    assert "1 of the 2 that were named are not in the graph" in out
    assert "3 would be computed again by precompute" in out
    answer = json.loads(call(*arguments, "--entity", "nobody", "--json")[1])
    assert (answer["named"], answer["found"], answer["gone"]) == (2, 1, 1)
    answer = json.loads(call(*arguments, "--hops", 3, "--json")[1])
    assert answer["entities"] == NAMES[1:6] and answer["dry_run"] is True
    assert answer["tokens"] == {}
    assert server.invalidated == [] and entities_of(server) == set(NAMES)


def test_the_affected_trees_are_given_up_and_will_be_computed_again(call, server, graph, tmp_path):
    state = tmp_path / "state.jsonl"
    before = len(server.cached)
    code, out, _ = call("invalidate", "--graph", graph, "--entity", "n3", "--state", state)
    gone = before - len(server.cached)
    assert code == 0
    assert f"3 entities are affected; tokens given up: {gone} on device" in out
    assert "3 will be computed again by precompute" in out
    assert entities_of(server) == set(NAMES) - {"n2", "n3", "n4"}
    out = call("invalidate", "--graph", graph, "--entity", "n3")[1]
    assert "tokens given up: none, since the server held none of theirs" in out
    again = json.loads(call("invalidate", "--graph", graph, "--entity", "n3", "--json")[1])
    assert (again["affected"], again["tokens"], again["forgotten"]) == (3, {"device": 0}, None)


@pytest.mark.falkordb
@pytest.mark.parametrize("verb", ["load", "remove"])
def test_what_changed_in_a_graph_is_written_and_read(call, server, tmp_path, verb):
    store, more, changed = tmp_path / "g.db", tmp_path / "more.tsv", tmp_path / "changed.txt"
    loaded = tmp_path / "loaded.tsv"
    loaded.write_text("".join(LINES))
    assert call("graph", "load", loaded, "--graph", store, "--changed", changed)[0] == 0
    assert changed.read_text().split() == NAMES
    more.write_text("n0\tlikes\tn7\n" if verb == "load" else f"bad\n{LINES[6]}x\ty\tz\n")
    code, out, _ = call("graph", verb, more, "--graph", store, "--changed", changed)
    assert code == 0
    ends = ["n0", "n7"] if verb == "load" else ["n6", "n7"]
    assert changed.read_text().split() == ends
    if verb == "remove":
        assert "1 triples are gone" in out and "6 triples of 7 entities" in out
        assert "1 malformed lines" in out
        answer = call("graph", verb, more, "--graph", store, "--json", "--changed", changed)[1]
        assert json.loads(answer)["removed"] == 0
        assert changed.read_text() == ""
        changed.write_text("\n".join(ends))
    out = call("invalidate", "--graph", store, "--file", changed, "--json")[1]
    found = {"load": ["n0", "n1", "n6", "n7"], "remove": ["n5", "n6", "n7"]}[verb]
    assert json.loads(out)["entities"] == found
    assert entities_of(server) == set(NAMES) - set(found)


def test_names_that_the_graph_has_not_are_counted(call, server, graph, tmp_path):
    before = set(server.cached)
    code, out, _ = call("invalidate", "--graph", graph, "--entity", "nobody", "--entity", "noone")
    assert code == 0 and set(server.cached) == before
    assert "tokens given up: none" in out
    assert "none of the 2 that were named were in the graph" in out
    code, _, err = call("invalidate", "--graph", tmp_path / "none.tsv", "--entity", "n3")
    assert code == 2 and "none.tsv" in err


def test_names_that_no_line_can_hold_are_told(call, tmp_path):
    file, changed = tmp_path / "odd.jsonl", tmp_path / "changed.txt"
    file.write_text(json.dumps(["two\nlines", "r", "one"]) + "\n")
    code, _, err = call("graph", "load", file, "--graph", "networkx:", "--changed", changed)
    assert code == 0 and changed.read_text() == "one\n"
    assert "1 names hold line breaks" in err


def test_an_empty_list_of_changes_is_no_error(call, server, graph, tmp_path):
    (tmp_path / "changed").write_text("")
    code, out, _ = call("invalidate", "--graph", graph, "--file", tmp_path / "changed")
    assert (code, out) == (0, "0 entities are affected; tokens given up: none\n")


def test_what_the_server_refuses_and_what_is_in_use_is_told(call, server, graph):
    server.on_invalidate = lambda paths: refused("no token") if ("n4",) in paths else None
    code, out, _ = call("invalidate", "--graph", graph, "--entity", "n5")
    assert code == 0 and "left out: n4: " in out and "no token" in out
    answer = {"tokens": {"device": 1, "host": 2}, "in_use": 7}
    server.on_invalidate = lambda paths: httpx.Response(200, json=answer)
    code, out, _ = call("invalidate", "--graph", graph, "--entity", "n5")
    assert "1 on device, 2 in host memory" in out and "7 tokens stay" in out


def test_what_stands_before_the_facts_is_as_for_precompute(call, server, graph, tmp_path):
    arguments = ["invalidate", "--graph", graph, "--entity", "n0", "--salt", "tenant"]
    assert call(*arguments, "--system", "Be brief.")[0] == 0
    body = server.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["cache_salt"] == "tenant"
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": "About:{{graph_context}}\nQ"}]))
    assert call(*arguments, "--messages", file)[0] == 0
    assert server.bodies[-1]["messages"][0]["content"] == "About:\nn0\nn1\nQ"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "nothing to invalidate"),
        (["--file", "/no/such/file"], "cannot read"),
        (["--entity", "n1", "--state", "/no/such/file"], "no state of a precomputation"),
        (["--entity", "n1", "--template", "prose"], "template"),
        (["--entity", " "], "visible text"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(call, server, graph, arguments, word):
    code, out, err = call("invalidate", "--graph", graph, *arguments)
    assert (code, out) == (2, "")
    assert word in err and err.count("\n") == 1


def test_a_server_that_fails_is_exit_code_3(call, server, graph):
    server.on_invalidate = lambda paths: httpx.Response(401, json={"error": "Unauthorized"})
    code, _, err = call("invalidate", "--graph", graph, "--entity", "n1")
    assert code == 3 and "refused the key" in err
