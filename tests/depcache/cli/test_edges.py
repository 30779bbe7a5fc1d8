# SPDX-License-Identifier: Apache-2.0
"""Damaged files, files that are no UTF-8, an output that takes nothing: one sentence, one code."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.ends import SLOWEST_S

Call = Callable[..., tuple[int, str, str]]
LATIN = "Curaçao\tis in\tthe Caribbean\n".encode("latin-1")


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """`refused("schema")` runs a command that must end with code 2 and one sentence; gives it."""

    def run(*arguments: object) -> str:
        code, out, err = call(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("depcache: ")
        return err

    return run


@pytest.fixture
def latin(tmp_path: Path) -> Path:
    """A file that is no UTF-8."""
    file = tmp_path / "latin-1.txt"
    file.write_bytes(LATIN)
    return file


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "graph.tsv"
    file.write_text("a\tr\tb\n")
    return file


def damage(data: bytes) -> bytes:
    """A gzip file whose header is sound and whose deflate data is not."""
    packed = bytearray(gzip.compress(data))
    packed[10:20] = b"\xff" * 10
    return bytes(packed)


@pytest.mark.parametrize(
    "pack",
    [damage, lambda data: gzip.compress(data)[:-12], lambda data: b"no gzip at all"],
    ids=["damaged", "cut off", "not packed"],
)
@pytest.mark.parametrize("command", ["load", "remove", "stats"])
def test_a_packed_graph_that_is_damaged_is_named(refused, tmp_path, command, pack):
    file = tmp_path / "facts.tsv.gz"
    file.write_bytes(pack(b"a\tr\tb\n" * 1000))
    if command == "stats":
        message = refused("graph", "stats", "--graph", file)
    else:
        message = refused("graph", command, file, "--graph", "networkx:")
    assert repr(str(file)) in message


def test_a_config_file_that_is_no_utf8_is_named(refused, latin, monkeypatch):
    monkeypatch.setenv("DEPCACHE_CONFIG", str(latin))
    assert repr(str(latin)) in refused("config", "show")


@pytest.mark.parametrize("text", ["1: 2", "[" * 5000, "- a", "\0"], ids="kdlc")
def test_a_config_file_that_holds_no_settings_is_refused(refused, tmp_path, monkeypatch, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    monkeypatch.setenv("DEPCACHE_CONFIG", str(file))
    refused("config", "show")


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "--paths", "FILE"],
        ["explain", "--body", "FILE"],
        ["invalidate", "--graph", "GRAPH", "--file", "FILE"],
        ["invalidate", "--graph", "GRAPH", "--entity", "a", "--system-file", "FILE"],
        ["invalidate", "--graph", "GRAPH", "--entity", "a", "--messages", "FILE"],
        ["precompute", "--graph", "GRAPH", "--entities", "file:FILE"],
        ["precompute", "--graph", "GRAPH", "--system-file", "FILE"],
        ["precompute", "--graph", "GRAPH", "--messages", "FILE"],
        ["graph", "load", "GRAPH", "--graph", "networkx:", "--aliases", "FILE"],
        ["graph", "build", "FILE", "--graph", "networkx:"],
        ["serve", "m", "--config", "FILE", "--dry-run"],
        ["finetune", "data", "--graph", "GRAPH", "--questions", "FILE", "--out", "FILE.out"],
    ],
    ids=" ".join,
)
def test_a_text_file_that_is_no_utf8_is_named(refused, latin, graph, arguments):
    names = {"FILE": str(latin), "GRAPH": str(graph)}
    for word, name in names.items():
        arguments = [argument.replace(word, name) for argument in arguments]
    assert repr(str(latin)) in refused(*arguments)


def test_training_data_that_is_no_utf8_is_named(latin):
    from depcache.errors import ConfigError
    from depcache.training.examples import read_examples

    with pytest.raises(ConfigError, match="latin-1"):
        list(read_examples(latin))


@pytest.mark.parametrize("option", ["--paths", "--body"])
def test_json_of_endless_depth_is_one_sentence(refused, tmp_path, option):
    file = tmp_path / "deep.json"
    file.write_text("[[" * 50_000)
    refused("explain", option, file)


def test_a_state_file_that_is_no_utf8_is_something_else(refused, latin, graph):
    arguments = ["--graph", graph, "--entity", "a", "--state", latin, "--dry-run"]
    assert "latin-1" in refused("invalidate", *arguments)


def test_a_file_that_cannot_be_written_is_named(refused, graph, tmp_path):
    pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "a?", "answer": "b"}))
    out = tmp_path / "nowhere" / "out.jsonl"
    message = refused(
        *("finetune", "data", "--graph", graph, "--pruner", "none"),
        *("--questions", questions, "--out", out),
    )
    assert "nowhere" in message


# What is written to: these need a process of their own, with a real file descriptor.


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "depcache.cli.main", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=SLOWEST_S, **options)


COMMANDS = [
    ["schema"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["serve", "m", "--dry-run"],
    ["--version"],
    ["--help"],
    ["graph", "stats", "--graph", "GRAPH"],
    ["graph", "load", "GRAPH", "--graph", "networkx:", "--json", "-"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_output_is_one_sentence(graph, arguments):
    arguments = [argument.replace("GRAPH", str(graph)) for argument in arguments]
    with open("/dev/full", "w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("depcache: the output cannot be written (No space left")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_output_that_nobody_reads_ends_the_command_quietly(graph, arguments):
    arguments = [argument.replace("GRAPH", str(graph)) for argument in arguments]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = run(*arguments, stdout=write_end)
    finally:
        os.close(write_end)
    # What a shell says of a program that SIGPIPE ended.
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_output_for_errors_too_still_has_its_code():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "depcache.cli.main", "schema"]
        done = subprocess.run(command, stdout=full, stderr=full, timeout=SLOWEST_S)
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_closed_output_is_no_error(graph, arguments):
    arguments = [argument.replace("GRAPH", str(graph)) for argument in arguments]
    done = run(*arguments, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_that_cannot_spell_the_answer_is_one_sentence(tmp_path):
    file = tmp_path / "graph.tsv"
    file.write_text("Łódź\tr\tb\n", encoding="utf-8")
    done = run(
        *("graph", "paths", "Łódź", "--graph", str(file)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("depcache: ") and "PYTHONIOENCODING" in done.stderr
    assert done.stderr.count("\n") == 1
