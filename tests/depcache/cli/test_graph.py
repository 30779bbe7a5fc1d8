# SPDX-License-Identifier: Apache-2.0
"""`depcache graph` and `depcache ask`: what they print, write and refuse."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")

from depcache.cli import ask, main
from depcache.graph import open_store
from tests.depcache.client.fake_server import REPORT, FakeServer, chat_chunks, named_paths, sse
from tests.helpers.chat_server import start_chat_server
from tests.helpers.ends import SLOWEST_S

LINES = "Ann Lee\tborn in\tOslo\nOslo\tis in\tNorway\nbad line\nAnn Lee\twrote\tBlue [b]\n"

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["depcache", *map(str, arguments)])
        monkeypatch.setattr(main.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as caught:
            main.app_main()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err  # pyright: ignore

    return run


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.tsv"
    path.write_text(LINES, encoding="utf-8")
    return path


@pytest.mark.falkordb
def test_load_counts_and_the_graph_is_there_afterwards(
    call: Call, facts: Path, tmp_path: Path
) -> None:
    graph, out = tmp_path / "graph.db", tmp_path / "out.json"
    aliases = tmp_path / "aliases.tsv"
    aliases.write_text("Ann Lee\tthe author\nNobody\tnone\n")
    code, text, _ = call(
        "graph", "load", facts, "--graph", graph, "--json", out, "--aliases", aliases
    )
    assert code == 0 and "3 new triples" in text and "1 malformed lines" in text
    answer = json.loads(out.read_text())
    assert (answer["triples"], answer["entities"], answer["skipped"]) == (3, 4, 1)
    assert answer["seconds"] > 0 and answer["unknown_aliases"] == 1
    assert answer["problems"][0].startswith("line 3:")

    code, text, _ = call("graph", "load", facts, "--graph", graph, "--json", "-")
    assert json.loads(text)["added"] == 0
    code, text, _ = call("graph", "stats", "--graph", graph, "--json")
    stats = json.loads(text)
    assert (stats["triples"], stats["relations"], stats["aliases"]) == (3, 3, 1)
    code, text, _ = call("graph", "link", "Where was The Author born?", "--graph", graph, "--json")
    assert json.loads(text)["links"] == [
        {"entity": "Ann Lee", "start": 10, "stop": 20, "score": 100.0}
    ]


def test_strict_fails_at_a_malformed_line(call: Call, facts: Path) -> None:
    code, _, error = call("graph", "load", facts, "--graph", "networkx:", "--strict")
    assert code == 2 and "line 3" in error


def test_paths_are_shown_as_trees_or_json(call: Call, facts: Path) -> None:
    code, text, _ = call("graph", "paths", "Ann Lee", "--graph", facts)
    assert code == 0
    # Markup in a name is text.
    assert "wrote Blue [b]" in text and "is in Norway" in text and "2 paths" in text
    code, text, _ = call("graph", "paths", "Ann Lee", "--graph", facts, "--hops", 1, "--json")
    assert json.loads(text)["paths"] == [
        ["Ann Lee", "born in", "Oslo"],
        ["Ann Lee", "wrote", "Blue [b]"],
    ]


def test_an_unknown_entity_is_refused_with_the_nearest_names(call: Call, facts: Path) -> None:
    code, _, error = call("graph", "paths", "Anne Lee", "--graph", facts)
    assert code == 2 and "nearest names are 'Ann Lee'" in error
    code, text, _ = call("graph", "link", "Who is Anna Leigh?", "--graph", facts)
    assert code == 0 and "no entity" in text and "Ann Lee" in text


def test_wrong_addresses_and_pruners_are_one_sentence(call: Call, tmp_path: Path) -> None:
    for arguments, word in (
        (["stats", "--graph", "neo4j://x"], "no kind of graph"),
        (["load", tmp_path / "missing.tsv", "--graph", "networkx:"], "cannot read"),
        (["paths", "x", "--graph", "networkx:", "--pruner", "best"], "no way to prune"),
    ):
        code, _, error = call("graph", *arguments)
        assert code == 2 and word in error and "Traceback" not in error


@pytest.mark.falkordb
@pytest.mark.parametrize(
    "command", ["graph stats", "graph load", "graph paths", "graph link", "graph build", "ask"]
)
def test_a_database_that_is_down_is_one_sentence_and_exit_code_3(
    call: Call, facts: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("depcache.graph.falkordb_store.time.sleep", waits.append)
    arguments: dict[str, list] = {
        "graph stats": [],
        "graph load": [facts],
        "graph build": [facts, "--state", facts.parent / "state.jsonl"],
    }
    url = "falkor://u:secret@127.0.0.1:9/g"
    code, text, error = call(*command.split(), *arguments.get(command, ["x"]), "--graph", url)
    assert code == 3 and text == ""
    assert error.count("\n") == 1 and "cannot be reached" in error and "start it" in error
    assert "secret" not in error and "Traceback" not in error
    assert waits == sorted(waits) and len(waits) >= 3


READS = [
    ["graph", "stats"],
    ["graph", "link", "Who is Ann?"],
    ["graph", "paths", "Ann"],
    ["graph", "remove", "FACTS"],
    ["ask", "Who is Ann?"],
    ["precompute"],
    ["invalidate", "--entity", "Ann"],
    ["finetune", "data", "--questions", "FACTS", "--out", "OUT"],
]


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_a_graph_that_is_not_there_is_named_and_not_made(
    call: Call, facts: Path, tmp_path: Path, command: list[str]
) -> None:
    command = [word.replace("FACTS", str(facts)) for word in command]
    for name in ("typo.tsv", "typo.jsonl.gz", "typo.graphml", "typo.db", "typo", "typo.nodb"):
        graph = tmp_path / name
        code, text, error = call(*command, "--graph", graph)
        assert (code, text, error.count("\n")) == (2, "", 1)
        assert str(graph) in error and error.startswith("depcache: ")
        assert not graph.exists()


@pytest.mark.falkordb
@pytest.mark.parametrize("command", [c for c in READS if "--entity" not in c], ids=" ".join)
def test_a_graph_that_is_empty_is_named(
    call: Call, facts: Path, tmp_path: Path, command: list[str]
) -> None:
    if "remove" in command:
        pytest.skip("taking triples out of an empty graph changes nothing")
    command = [word.replace("FACTS", str(facts)) for word in command]
    (tmp_path / "empty.tsv").write_text("")
    with open_store(tmp_path / "graph.db") as store:
        store.upsert([("a", "r", "b")])
        store.remove([("a", "r", "b")])
    for graph in ("networkx:", tmp_path / "empty.tsv", tmp_path / "graph.db"):
        code, text, error = call(*command, "--graph", graph)
        assert (code, text, error.count("\n")) == (2, "", 1)
        assert str(graph) in error and "is empty" in error


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl.gz", ".graphml"])
def test_load_and_remove_write_a_file(call: Call, facts: Path, tmp_path: Path, suffix: str) -> None:
    graph = tmp_path / f"graph{suffix}"
    code, text, _ = call("graph", "load", facts, "--graph", graph)
    assert code == 0 and "3 new triples" in text
    assert json.loads(call("graph", "stats", "--graph", graph, "--json")[1])["triples"] == 3
    gone = tmp_path / "gone.tsv"
    gone.write_text("Oslo\tis in\tNorway\n")
    assert call("graph", "remove", gone, "--graph", graph)[0] == 0
    assert set(open_store(graph).triples()) == {
        ("Ann Lee", "born in", "Oslo"),
        ("Ann Lee", "wrote", "Blue [b]"),
    }
    before = graph.read_bytes()
    (tmp_path / "aliases.tsv").write_text("Ann Lee\tthe author\n")
    code, _, error = call(
        "graph", "load", gone, "--graph", graph, "--aliases", tmp_path / "aliases.tsv"
    )
    assert code == 2 and "no place for --aliases" in error
    assert graph.read_bytes() == before


def test_what_is_loaded_into_memory_only_is_said_to_be_gone(call: Call, facts: Path) -> None:
    code, text, _ = call("graph", "load", facts, "--graph", "networkx:")
    assert code == 0 and "nothing of it is kept" in text


def test_figures_on_stdout_are_nothing_but_json(call: Call, facts: Path, tmp_path: Path) -> None:
    packed = tmp_path / "facts.tsv.gz"
    packed.write_bytes(gzip.compress(facts.read_bytes()))
    for file in (facts, packed):
        code, text, _ = call("graph", "load", file, "--graph", "networkx:", "--json", "-")
        answer = json.loads(text)
        assert code == 0 and (answer["triples"], answer["entities"]) == (3, 4)
        assert isinstance(answer["seconds"], float)


def test_the_progress_of_a_load_is_shown_on_stderr(
    call: Call, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    code, text, error = call("graph", "load", facts, "--graph", "networkx:", "--json", "-")
    assert code == 0 and json.loads(text)["added"] == 3
    assert "triples" in error and "/4" in error


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    client = ask.Client
    monkeypatch.setattr(
        ask,
        "Client",
        lambda url, key: client(url, key, http_client=httpx.Client(transport=fake.transport)),
    )
    return fake


def test_ask_shows_paths_answer_and_reuse(call: Call, facts: Path, server: FakeServer) -> None:
    code, text, _ = call("ask", "Where was Ann Lee born?", "--graph", facts, "--pruner", "none")
    assert code == 0
    assert text.index("is in Norway") < text.index("Warsaw") < text.index("15 reused")
    assert [tuple(path) for path in named_paths(server.body)] == [
        ("Ann Lee", "wrote", "Blue [b]"),
        ("Ann Lee", "born in", "Oslo", "is in", "Norway"),
    ]


def test_several_questions_are_asked_of_one_graph(
    call: Call, facts: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    real = open_store

    def count(*arguments: object, **options: bool) -> object:
        opened.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr("depcache.cli.graphs.open_store", count)
    lines = "Where was Ann Lee born?\n\nWhat did Ann Lee write?  \n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code, text, _ = call("ask", "-", "--graph", facts, "--json")
    first, second = map(json.loads, text.splitlines())
    assert code == 0 and len(opened) == 1
    assert first["answer"] == second["answer"] == "Warsaw"
    asked = [body["messages"][-1]["content"] for _, body in server.requests]
    assert [words.endswith(end) for words, end in zip(asked, ("born?", "write?"), strict=True)]
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code, text, _ = call("ask", "-", "--graph", facts)
    assert code == 0 and text.count("Warsaw") == text.count("15 reused") == 2


def test_a_question_that_is_refused_does_not_end_the_others(
    call: Call, facts: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.write_text("Ann Lee\tborn in\tOslo\n")
    lines = "Ann Lee -> born in -> Oslo? x\nWho is Ann Lee?\n"
    refused = lines.splitlines()[0]
    real = server.answer

    def answer(request: httpx.Request) -> httpx.Response:
        if refused in json.loads(request.content)["messages"][-1]["content"]:
            return httpx.Response(400, json={"message": "no"})
        return real(request)

    monkeypatch.setattr(server.transport, "handler", answer)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    code, text, error = call("ask", "-", "--graph", facts, "--json")
    assert code == 2 and len(text.splitlines()) == 1
    assert "refused the request" in error and error.count("\n") == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    code, text, error = call("ask", "-", "--graph", facts)
    assert (code, text) == (2, "") and "no question" in error


@pytest.mark.parametrize("is_piped", [False, True])
def test_a_terminal_is_asked_for_questions(facts: Path, is_piped: bool) -> None:
    data = sse(*chat_chunks())
    with start_chat_server(lambda _: (200, "unused"), stream=data) as (url, bodies):
        command = [sys.executable, "-m", "depcache.cli.main", "ask", "-", "--server", url]
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command, "--graph", str(facts)],
            stdin=theirs,
            stdout=subprocess.PIPE if is_piped else theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""

        def read_until(word: bytes) -> None:
            nonlocal shown
            deadline = time.monotonic() + SLOWEST_S
            while word not in shown:
                assert select.select([ours], [], [], deadline - time.monotonic())[0], shown
                shown += os.read(ours, 4096)

        try:
            for question in (b"Who is Ann Lee?", b"Where was Ann Lee born?"):
                read_until(b"question> ")
                shown = b""
                os.write(ours, question + b"\n")
            read_until(b"question> ")
            os.write(ours, b"\x04")
            out = process.communicate(timeout=SLOWEST_S)[0] if is_piped else shown
            assert process.wait(SLOWEST_S) == 0
        finally:
            process.kill()
            os.close(ours)
        assert b"Warsaw" in out
        assert b"question>" not in (out if is_piped else b"")
    assert len(bodies) == 2


def test_ask_as_json_holds_everything(call: Call, facts: Path, server: FakeServer) -> None:
    code, text, _ = call("ask", "Who is Ann Lee?", "--graph", facts, "--pruner", "none", "--json")
    answer = json.loads(text)
    assert code == 0 and answer["answer"] == "Warsaw"
    assert answer["entities"] == ["Ann Lee"] and len(answer["paths"]) == 2
    not_told = {"differs": None, "recognised": None, "tail": 0, "see": "ancestors", "settled": 0}
    not_told |= {"select": None, "recompute": None, "recomputed": 0, "behind": 0}
    not_told |= {"patched": 0, "tables": None, "variants": 0}
    assert answer["depcache"] == {**REPORT, **not_told}
    assert answer["usage"]["cached_tokens"] == 15


def test_ask_without_facts_does_not_blame_the_server(
    call: Call, facts: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = chat_chunks(with_report=False)
    monkeypatch.setattr("tests.depcache.client.fake_server.chat_chunks", lambda: chunks)
    code, text, _ = call("ask", "Who is Zzyzx?", "--graph", facts, "--pruner", "none")
    assert code == 0
    assert "the question went out alone" in text
    assert "without DepCache" not in text
