# SPDX-License-Identifier: Apache-2.0
"""`depcache graph` with names as real graphs have them: labels, spellings, repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")

from tests.depcache.cli.test_graph import Call, call

__all__ = ["call"]

LABELLED = (
    "/m/0abc\ttype.object.name\tMarie Curie\n/m/0abc\tborn_in\tWarsaw_city\n"
    "/m/0abc\tcommon.topic.alias\tMadame Curie\n/m/0abc\tknows\t/m/0abc\n"
)


@pytest.mark.falkordb
def test_labels_name_the_entities_of_a_database(call: Call, tmp_path: Path) -> None:
    facts, graph = tmp_path / "facts.tsv", tmp_path / "graph.db"
    facts.write_text(LABELLED)
    labels = ["--label", "type.object.name", "--label", "common.topic.alias"]
    code, text, _ = call("graph", "load", facts, "--graph", graph, *labels)
    assert code == 0 and "2 new triples" in text
    for asked in (
        "Where was Marie Curie born?",
        "Where was madame curie born?",
        "What is /m/0abc?",
    ):
        _, text, _ = call("graph", "link", asked, "--graph", graph, "--json")
        assert [link["entity"] for link in json.loads(text)["links"]] == ["Marie Curie"]
    # A later file that has the identifier only is about the same entity.
    facts.write_text("/m/0abc\tdied_in\tPassy\n")
    call("graph", "load", facts, "--graph", graph)
    _, text, _ = call("graph", "paths", "marie_curie", "--graph", graph, "--json")
    assert ["Marie Curie", "died_in", "Passy"] in json.loads(text)["paths"]
    code, text, _ = call("graph", "remove", facts, "--graph", graph)
    assert code == 0 and "1 triples are gone" in text


@pytest.mark.falkordb
def test_a_label_that_comes_late_is_an_alias(call: Call, tmp_path: Path) -> None:
    facts, graph = tmp_path / "facts.tsv", tmp_path / "graph.db"
    for line in ("/m/0abc\tborn_in\tWarsaw\n", "/m/0abc\tname\tMarie Curie\n"):
        facts.write_text(line)
        call("graph", "load", facts, "--graph", graph)
    _, text, _ = call("graph", "link", "Where was Marie Curie born?", "--graph", graph, "--json")
    assert [link["entity"] for link in json.loads(text)["links"]] == ["/m/0abc"]


def test_paths_may_repeat_where_it_is_asked_for(call: Call, tmp_path: Path) -> None:
    facts = tmp_path / "facts.tsv"
    facts.write_text("Ann_Lee\tknows\tAnn_Lee\nAnn_Lee\twrote\tBlue\nBlue\tabout\tAnn_Lee\n")
    _, text, _ = call("graph", "paths", "ann lee", "--graph", facts, "--json")
    assert all(len(set(path[::2])) == len(path[::2]) for path in json.loads(text)["paths"])
    _, text, _ = call("graph", "paths", "ANN LEE", "--graph", facts, "--json", "--allow-repeats")
    paths = json.loads(text)["paths"]
    assert ["Ann_Lee", "wrote", "Blue", "about", "Ann_Lee"] in paths
    assert any(path[:3] == ["Ann_Lee", "knows", "Ann_Lee"] for path in paths)


def test_a_malformed_file_is_told_by_file_and_line(call: Call, tmp_path: Path) -> None:
    facts = tmp_path / "facts.csv"
    facts.write_text("head,relation,tail\na,b\n")
    code, _, text = call("graph", "load", facts, "--graph", "networkx:", "--strict")
    assert code != 0 and "line 2 of" in " ".join(text.split()) and "facts.csv" in text


def test_a_file_whose_identifiers_have_labels_is_only_read(call: Call, tmp_path: Path) -> None:
    facts, new = tmp_path / "facts.tsv", tmp_path / "new.tsv"
    text = "/m/0abc\tname\tMarie Curie\n/m/0abc\tborn_in\tWarsaw\n"
    facts.write_text(text)
    new.write_text("Ann\tknows\tBob\n")
    code, _, error = call("graph", "load", new, "--graph", facts)
    assert code == 2 and "read-only" in " ".join(error.split())
    assert facts.read_text() == text
    # Into a plain file go the names; it has no place for the identifiers.
    code, _, _ = call("graph", "load", facts, "--graph", new)
    assert code == 0 and "Marie Curie\tborn_in\tWarsaw\n" in new.read_text()
