# SPDX-License-Identifier: Apache-2.0
"""`python -m eval firsthour`: its graphs, its figures by hand, and the whole way with a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")

from depcache.graph.triples import read_triples
from eval.__main__ import main
from eval.firsthour.measures import edges_of, find_sets, gold_kinds, has_gold, is_said
from eval.sets import Question

CHAIN = Question(
    "1",
    "Where was the director of Alien born?",
    ("Durham",),
    ("Alien",),
    evidence=(("Alien", "directed_by", "Ridley"), ("Ridley", "born_in", "Durham")),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert main(["firsthour", "--make", str(folder), "--seed", "3"]) == 0
    return folder


def test_a_gold_path_starts_at_the_entity_and_ends_at_an_answer() -> None:
    assert gold_kinds(CHAIN) == {("Alien", ("directed_by", "born_in"))}
    whole = ("Alien", "directed_by", "Ridley", "born_in", "Durham")
    assert has_gold(CHAIN, [whole], allow_repeats=False)
    assert has_gold(CHAIN, [(*whole, "is in", "England")], allow_repeats=False)
    assert not has_gold(CHAIN, [whole[:3], ("Alien", "born_in", "Durham")], allow_repeats=False)
    both = Question("2", "?", ("yes",), ("a", "b"), evidence=(("a", "r", "c"), ("b", "r", "c")))
    assert has_gold(both, [("a", "r", "c", "inverse of r", "b")], allow_repeats=False)
    assert not has_gold(both, [("a", "r", "c")], allow_repeats=False)


def test_a_name_is_said_letter_for_letter_or_not() -> None:
    assert is_said("marguerite_of_france", "the spouse of Marguerite of France?")
    assert is_said("Maya (1999 film)", "the director of film Maya (1999 Film)")
    assert not is_said("Reo Franklin Fortune", "the wife of Reo Fortune")


def test_gold_triples_of_the_hostile_graphs_are_in_them(made: Path) -> None:
    for name in ("hostile_names", "hostile_repeats"):
        [data] = find_sets(made / name)
        assert data.num_hops == 3 and data.allow_repeats == (name == "hostile_repeats")
        triples = set(read_triples(data.graph, strict=True))
        for question in data.questions:
            assert set(question.evidence) <= triples
            assert gold_kinds(question, data.allow_repeats)
    loops = {h for h, _, t in read_triples(made / "hostile_names" / "triples.tsv") if h == t}
    assert len(loops) > 10
    assert list(edges_of(("a", "inverse of r", "b"))) == [("b", "r", "a")]


@pytest.mark.parametrize("name", ["hostile_names", "hostile_repeats", "hostile_addresses"])
def test_what_must_hold_holds_on_graphs_with_hostile_names(
    made: Path, tmp_path: Path, name: str
) -> None:
    if name == "hostile_addresses":
        pytest.importorskip("rdflib", reason="needs the extra `formats`")
    out = tmp_path / "out.json"
    arguments = ["--data", str(made / name), "--asked", "0", "--store", "networkx"]
    assert main(["firsthour", *arguments, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    [row] = report["rows"]
    assert row["linked"] >= 0.98 and row["extra_linked"] <= 0.05 and row["gold_path"] >= 0.95
    assert str(tmp_path) not in out.read_text() and report["seed"] == 1


def test_a_folder_without_a_graph_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["firsthour", "--data", str(tmp_path)]) == 2
    assert "--make" in capsys.readouterr().err


@pytest.mark.sglang
@pytest.mark.falkordb
@pytest.mark.slow
def test_the_whole_way_with_a_server(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    folder = ["--data", str(made / "hostile_names"), "--questions", "20", "--asked", "2"]
    assert main(["firsthour", *folder, "--json", str(out)]) == 0
    [row] = json.loads(out.read_text())["rows"]
    assert row["asked"] == 2 and row["load_s"] > 0 and row["ask_ms_own"] > 0
    assert row["change"]["seen"] and row["change"]["gone"]
    assert row["change"]["given_up"] > 0
