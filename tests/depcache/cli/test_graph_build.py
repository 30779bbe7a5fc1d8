# SPDX-License-Identifier: Apache-2.0
"""`depcache graph build`: what it extracts and loads, tries again, and says when it fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from depcache.graph.stores import open_store
from tests.helpers.chat_server import start_chat_server

Call = Callable[..., tuple[int, str, str]]


def test_build_extracts_and_loads(call: Call, tmp_path: Path) -> None:
    busy = [503, 429]

    def answer(body: dict) -> tuple[int, str]:
        if busy:
            return busy.pop(), "busy"
        text = body["messages"][-1]["content"]
        if "nonsense" in text:
            return 200, "I would rather not."
        found = re.findall(r"(\w+) wrote (\w+)", text)
        rows = [{"head": head, "relation": "wrote", "tail": tail} for head, tail in found]
        return 200, json.dumps({"triples": rows})

    (tmp_path / "a.txt").write_text("Ann wrote Blue. Bob wrote Red.")
    lines = [{"title": "B", "text": "Ann wrote Blue."}, {"title": "C", "text": "nonsense"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "triples.jsonl"
    arguments = ["graph", "build", tmp_path / "a.txt", tmp_path / "b.jsonl", "--out", out]
    arguments += ["--graph", "networkx:", "--state", tmp_path / "state.jsonl", "--json"]
    with start_chat_server(answer) as (url, bodies):
        code, text, _ = call(*arguments, "--server", url, "--model", "m")
        first = json.loads(text)
        assert code == 0
        assert (first["chunks"], first["triples"], first["added"]) == (3, 2, 2)
        assert first["bad_chunks"] == len(first["problems"]) == 1
        assert set(open_store(out).triples()) == {("Ann", "wrote", "Blue"), ("Bob", "wrote", "Red")}
        # Two were turned away, and what cannot be used is asked for twice.
        assert len(bodies) == 3 + 2 + 1
        assert all(body["model"] == "m" and body["response_format"] for body in bodies)
        assert first["answer_form"] == "json_schema" and first["retried"] == 0
        again = json.loads(call(*arguments, "--server", url)[1])
        assert (again["resumed"], again["retried"], again["bad_chunks"]) == (2, 1, 1)
        assert len(bodies) == 6 + 2 and "nonsense" in bodies[-1]["messages"][-1]["content"]
    (tmp_path / "b.jsonl").write_text("no JSON")
    code, _, error = call(*arguments)
    assert code == 2 and "line 1" in error


def test_build_refuses_what_the_server_refuses(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ann wrote Blue.")
    arguments = ["graph", "build", tmp_path / "a.txt", "--state", tmp_path / "s", "--graph"]
    with start_chat_server(lambda _: (400, "no such model")) as (url, _):
        code, _, error = call(*arguments, "networkx:", "--server", url)
    assert code == 2 and "no such model" in error and error.count("\n") == 1


def test_build_without_a_single_triple_fails_and_says_why(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ann wrote Blue.")
    arguments = ["graph", "build", tmp_path / "a.txt", "--state", tmp_path / "s", "--graph"]
    arguments += ["networkx:", "--max-tokens", "5"]
    with start_chat_server(lambda _: (200, '{"triples": [', "length")) as (url, bodies):
        code, text, _ = call(*arguments, "--server", url)
        assert code == 1
        assert "a.txt: the answer was cut at --max-tokens 5: raise it" in text
        assert "the same command again" in text
        assert len(bodies) == 1
        code, text, _ = call(*arguments, "--server", url, "--json")
        assert code == 1 and json.loads(text)["retried"] == 1
    with start_chat_server(lambda _: (200, '{"triples": []}')) as (url, _):
        assert call(*arguments, "--server", url)[0] == 1
    good = json.dumps({"triples": [{"head": "Ann", "relation": "wrote", "tail": "Blue"}]})
    other = tmp_path / "b.txt"
    other.write_text("Ann wrote Blue again.")
    with start_chat_server(lambda _: (200, good)) as (url, _):
        code, text, _ = call(*arguments[:2], other, *arguments[3:], "--server", url)
    assert code == 0 and "1 triples from 1 chunks" in text


def test_build_says_when_the_server_takes_no_schema(call: Call, tmp_path: Path) -> None:
    def answer(body: dict) -> tuple[int, str]:
        if "response_format" in body:
            return 400, "response_format is not supported"
        return 200, '```json\n{"triples": [{"head": "A", "relation": "r", "tail": "B"}]}\n```'

    (tmp_path / "a.txt").write_text("A r B.")
    arguments = ["graph", "build", tmp_path / "a.txt", "--state", tmp_path / "s", "--graph"]
    with start_chat_server(answer) as (url, _):
        code, text, _ = call(*arguments, "networkx:", "--server", url)
    assert code == 0 and "does not hold answers to a JSON Schema" in text


def test_build_of_files_without_text_is_refused_before_a_server_is_asked(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(" \n")
    code, _, error = call("graph", "build", tmp_path / "a.txt", "--server", "http://127.0.0.1:9")
    assert code == 2 and "no text in" in error and "a.txt" in error
