# SPDX-License-Identifier: Apache-2.0
"""Every form of graph file, with labels, into both kinds of store; and what is malformed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest

from depcache.errors import ConfigError, PromptError
from depcache.graph import open_store
from depcache.graph.labels import known_identifiers
from depcache.graph.loading import GraphReader
from depcache.graph.triples import Skipped

MARIE = [("Marie Curie", "born in", "Warsaw"), ("Warsaw", "is in", "Poland")]

NTRIPLES = """\
# a comment
<http://x.org/m/0a> <http://x.org/p#bornIn> <http://x.org/r/War%C5%A1awa> .
<http://x.org/m/0a> <http://www.w3.org/2000/01/rdf-schema#label> "Maria Curie"@pl .
<http://x.org/m/0a> <http://www.w3.org/2000/01/rdf-schema#label> "Marie Curie"@en .
<http://x.org/m/0a> <http://www.w3.org/2004/02/skos/core#altLabel> "Madame Curie" .
<http://x.org/m/0a> <http://x.org/p#year> "1867"^^<http://www.w3.org/2001/XMLSchema#gYear> .
"""
TURTLE = """\
@prefix x: <http://x.org/p#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
<http://x.org/m/0a> x:bornIn <http://x.org/r/War%C5%A1awa> ; x:year "1867" ;
  rdfs:label "Marie Curie"@en, "Maria Curie"@pl ;
  <http://www.w3.org/2004/02/skos/core#altLabel> "Madame Curie" .
"""
RDF_TRIPLES = {("Marie Curie", "bornIn", "Waršawa"), ("Marie Curie", "year", "1867")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, **options: object) -> tuple[list[tuple[str, str, str]], dict[str, list[str]]]:
    reader = GraphReader(path, **options)  # pyright: ignore
    return list(reader), reader.aliases()


@pytest.mark.parametrize(("name", "text"), [("g.nt", NTRIPLES), ("g.ttl", TURTLE)])
def test_rdf_is_read_by_labels_and_last_parts(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("rdflib", reason="needs the extra `formats`")
    triples, aliases = read(write(tmp_path / name, text))
    assert set(triples) == RDF_TRIPLES
    assert set(aliases["Marie Curie"]) == {"http://x.org/m/0a", "Madame Curie", "Maria Curie"}
    assert aliases["Waršawa"] == ["http://x.org/r/War%C5%A1awa"]


def test_a_zipped_file_of_lines_is_read_as_well(tmp_path: Path) -> None:
    pytest.importorskip("rdflib", reason="needs the extra `formats`")
    path = tmp_path / "g.nt.gz"
    path.write_bytes(gzip.compress(NTRIPLES.encode()))
    assert set(read(path)[0]) == RDF_TRIPLES


def test_two_things_of_one_name_stay_two(tmp_path: Path) -> None:
    lines = ["Q1\tname\tMercury", "Q2\tname\tMercury", "Q1\torbits\tQ3", "Q2\tmelts at\t-39 C"]
    triples, aliases = read(write(tmp_path / "g.tsv", "\n".join(lines)))
    assert triples == [("Mercury", "orbits", "Q3"), ("Mercury (Q2)", "melts at", "-39 C")]
    assert aliases == {"Mercury": ["Q1"], "Mercury (Q2)": ["Q2", "Mercury"]}


def test_a_relation_that_gives_names_can_be_named(tmp_path: Path) -> None:
    text = "/m/0a\ttype.object.name\tMarie Curie\n/m/0a\tborn\tWarsaw\nAnn\tname\tAnnabel\n"
    path = write(tmp_path / "g.tsv", text)
    assert ("/m/0a", "type.object.name", "Marie Curie") in read(path)[0]
    triples, aliases = read(path, labels=["type.object.name"])
    # Ann has a name that is no identifier, and keeps her fact.
    assert triples == [("Marie Curie", "born", "Warsaw"), ("Ann", "name", "Annabel")]
    assert aliases == {"Marie Curie": ["/m/0a"]}
    later = write(tmp_path / "later.tsv", "/m/0a\tdied\tPassy\n")
    assert read(later, known=known_identifiers(aliases))[0] == [("Marie Curie", "died", "Passy")]


def make_graphml(path: Path) -> Path:
    graph = nx.MultiDiGraph()
    graph.add_node("n0", name="Marie Curie", alias="Madame Curie")
    graph.add_node("n1", label="Warsaw")
    graph.add_edge("n0", "n1", relation="born in")
    graph.add_edge("n1", "Poland", relation="is in")
    nx.write_graphml(graph, path)
    return path


def make_csv(path: Path) -> Path:
    return write(path, "source;target;type\nMarie Curie;Warsaw;born in\nWarsaw;Poland;is in\n")


def make_apoc_csv(path: Path) -> Path:
    rows = ["_id,_labels,name,since,_start,_end,_type", '0,:Person,"Marie Curie",,,,']
    rows += ["1,:City,Warsaw,,,,", "2,:Country,Poland,,,,"]
    rows += [",,,1867,0,1,born in", ",,,,1,2,is in"]
    return write(path, "\n".join(rows) + "\n")


def make_apoc_json(path: Path) -> Path:
    names = ["Marie Curie", "Warsaw", "Poland"]
    rows: list[dict[str, object]] = [
        {"type": "node", "id": str(i), "labels": ["Thing"], "properties": {"name": name}}
        for i, name in enumerate(names)
    ]
    for i, relation in enumerate(["born in", "is in"]):
        ends = {"start": {"id": str(i), "labels": []}, "end": {"id": str(i + 1), "labels": []}}
        rows.append({"type": "relationship", "id": str(i), "label": relation, **ends})
    return write(path, "\n".join(map(json.dumps, rows)))


def make_import_folder(path: Path) -> Path:
    write(path / "people.csv", "id:ID(Person),name:string,:LABEL\n1,Marie Curie,Person\n")
    write(path / "places.csv", "id:ID(Place),name,:LABEL\n1,Warsaw,Place\n2,Poland,Place\n")
    write(path / "z1.csv", ":START_ID(Person),:END_ID(Place),:TYPE\n1,1,born in\n")
    write(path / "z2.csv", ":START_ID(Place),:END_ID(Place),:TYPE\n1,2,is in\n")
    return path


def make_parquet(path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    path.mkdir()
    columns = dict(zip(("source", "description", "target"), zip(*MARIE, strict=True), strict=True))
    rows = {**{name: list(column) for name, column in columns.items()}, "weight": [1.0, 2.0]}
    parquet.write_table(pyarrow.table(rows), path / "create_final_relationships.parquet")
    return path


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make_graphml, "g.graphml"),
        (make_csv, "g.csv"),
        (make_apoc_csv, "export.csv"),
        (make_apoc_json, "export.json"),
        (make_apoc_json, "export.jsonl"),
        (make_import_folder, "import"),
        (make_parquet, "output"),
    ],
)
def test_graphs_of_other_programs_are_read_by_their_names(
    tmp_path: Path, make: Callable[[Path], Path], name: str
) -> None:
    path = make(tmp_path / name)
    assert sorted(read(path)[0]) == MARIE
    # Read into memory from there, too, with the aliases.
    with open_store(str(path)) as store:
        assert sorted(store.triples()) == MARIE
        expected = {"Marie Curie": ["Madame Curie"]} if name == "g.graphml" else {}
        assert store.aliases() == expected


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("g.nt", "<http://x/a> <http://x/b> <http://x/c> .\n<http://x/a> oops .\n", 2),
        ("g.ttl", "@prefix x: <http://x/> .\n\nx:a x:b x:c .\nx:a x:b ;;; oops\n", 4),
        ("g.csv", 'head,relation,tail\na,b,c\na,"b\n', 3),
        ("g.csv", "head,relation,tail\na,b,c\na,b,c,d\n", 3),
        ("g.csv", "head,relation,tail\na,b,c\na,,c\n", 3),
        ("g.csv", "a,b,c\n", 1),
        ("g.json", '{"type": "node", "id": "0"}\n{"type": oops}\n', 2),
        ("g.json", '[{"type": "node", "id": "0"},\n oops]', 2),
    ],
)
def test_what_is_malformed_is_told_by_file_and_line(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    if name in ("g.nt", "g.ttl"):
        pytest.importorskip("rdflib", reason="needs the extra `formats`")
    with pytest.raises(PromptError, match=rf"line {line} of '.*{name}'"):
        read(write(tmp_path / name, text), strict=True)


def test_malformed_lines_are_counted_where_the_rest_can_be_read(tmp_path: Path) -> None:
    skipped = Skipped()
    path = write(tmp_path / "g.csv", "head,relation,tail\na,b,c\na,,c\n,,\n")
    assert read(path, skipped=skipped)[0] == [("a", "b", "c")]
    assert skipped.problems[0].startswith("line 3: its relation") and skipped.count == 1


@pytest.mark.parametrize("name", ["g.nt", "g.ttl", "r.parquet"])
def test_a_missing_reader_is_one_sentence_with_the_extra(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr("depcache.graph.rdf.import_module", refuse)
    monkeypatch.setattr("depcache.graph.property_files.import_module", refuse)
    with pytest.raises(ConfigError, match="formats"):
        read(write(tmp_path / name, "x"))


def test_unknown_forms_are_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "graph.xyz", tmp_path / "g.ttl.gz", tmp_path):
        with pytest.raises(PromptError, match=r"tell the form|holds no graph"):
            GraphReader(path)
