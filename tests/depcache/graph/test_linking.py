# SPDX-License-Identifier: Apache-2.0
"""Names in a text: exact, folded, aliased, similar, overlapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")

from depcache.graph.linking import EntityLinker, Link
from depcache.graph.naming import fold, readings

NAMES = ["New York", "York", "Ångström", "O'Brien", "C++", "İzmir", "What", "东京", "東京タワー"]
LINKER = EntityLinker(NAMES, {"New York": ["Big Apple", "NYC"]}, threshold=101)


def entities(text: str, linker: EntityLinker = LINKER) -> list[str]:
    return [link.entity for link in linker.link(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Is York in New York?", ["York", "New York"]),
        ("new  york and NEW\nYORK", ["New York"]),
        ("Yorkshire and Newyork", []),
        ("Yorkshire and NewYork", ["New York"]),
        ("the big apple, or NYC", ["New York"]),
        ("angstrom ANGSTRÖM", ["Ångström"]),
        ("Who is O’Brien’s friend?", ["O'Brien"]),
        ("C++ or C?", ["C++"]),
        ("in izmir", ["İzmir"]),
        ("ＮＥＷ ＹＯＲＫ", ["New York"]),
        ("我在东京工作", ["东京"]),
        ("東京タワーへ行く", ["東京タワー"]),
        ("what is it", []),
        ("What is it", []),
        ("the film What is it", ["What"]),
        ("what", ["What"]),
        ("", []),
    ],
)
def test_names_are_found_whole_without_case_and_accents(text: str, names: list[str]) -> None:
    assert entities(text) == names


def test_spans_are_those_of_the_text_as_it_was_written() -> None:
    text = "  ﬁne, in the bıg   APPLE? No: İZMİR\u0301!"
    for link in LINKER.link(text):
        assert (link.entity, text[link.start : link.stop]) in [
            ("New York", "bıg   APPLE"),
            ("İzmir", "İZMİR"),
        ]
    assert "İzmir" in entities(text)


def test_names_that_differ_in_case_only_are_told_apart_by_the_spelling() -> None:
    linker = EntityLinker(["Turkey", "turkey"])
    assert entities("She flew to Turkey", linker) == ["Turkey"]
    assert entities("She roasted a turkey", linker) == ["turkey"]
    assert entities("TURKEY", linker) == ["Turkey", "turkey"]


def test_a_similar_name_counts_only_where_none_matches() -> None:
    linker = EntityLinker(["Grégoire Colin", "Colin Firth", "Film"])
    [link] = linker.link("what does Gregiore Collin appear in")
    assert link.entity == "Grégoire Colin"
    assert 85 <= link.score < 100
    assert (link.start, link.stop) == (10, 25)
    assert entities("films of Colin Firth and Gregiore Collin", linker) == ["Colin Firth"]
    assert entities("what did gregoire colan make", linker) == ["Grégoire Colin"]
    assert EntityLinker(["Grégoire Colin"], threshold=101).link("Gregiore Collin") == []


def test_the_nearest_names_of_an_unknown_one() -> None:
    linker = EntityLinker(["Marie Curie", "Pierre Curie", "Warsaw"])
    assert linker.link("Who was Maria Kuri?") == []
    assert linker.nearest("Who was Maria Kuri?")[0] == "Marie Curie"
    assert linker.nearest("zzzzz") == []
    assert EntityLinker([]).nearest("Ann") == EntityLinker([]).link("Ann") == []


def test_the_longest_names_stay_when_there_are_too_many() -> None:
    linker = EntityLinker([f"name{'x' * i}" for i in range(20)])
    text = " ".join(f"name{'x' * i}" for i in range(20))
    found = linker.link(text, max_entities=3)
    assert [link.entity for link in found] == [f"name{'x' * i}" for i in (17, 18, 19)]


@given(
    names=st.lists(st.text(alphabet="abAB ", min_size=1, max_size=5), max_size=6),
    text=st.text(alphabet="abAB ?", max_size=20),
)
def test_what_is_found_is_what_a_search_of_every_place_finds(names: list[str], text: str) -> None:
    linker = EntityLinker(names, threshold=101)
    folded = {reading for name in names for reading in readings(name)} - {""} - {"a", "as"}
    found = [link for link in linker.link(text) if fold(link.entity) not in {"a", "as"}]
    for link in found:
        assert folded & set(readings(text[link.start : link.stop]))
    # Every name that stands in the text as whole words is found, or overlaps a longer one.
    plain = fold(text)
    padded = f" {plain.replace('?', ' ? ')} "
    for name in folded:
        if f" {name} " in padded:
            spans = [fold(text[link.start : link.stop]) for link in linker.link(text)]
            assert any(len(span) >= len(name) for span in spans)


@given(text=st.text(max_size=50))
def test_any_text_and_any_name_are_harmless(text: str) -> None:
    linker = EntityLinker([text, "Ann"], {"Ann": [text]})
    for link in linker.link(f"x {text} y"):
        assert isinstance(link, Link)
        assert 0 <= link.start < link.stop <= len(text) + 4


ODD = EntityLinker(
    [
        "marguerite_of_france",
        "France",
        "Order_of_New_Velm",
        "New Velm",
        "Velm",
        "http://dbpedia.org/resource/Marie_Curie",
        "http://x.org/y#PierreCurie",
        "/m/0abc",
        "director",
        "Together",
        "Maya",
        "1999",
        "Mercury (planet)",
        "Henry Lascelles, 4th Earl of Harewood",
        "Reo Franklin Fortune",
    ],
    {"/m/0abc": ["Irène Joliot-Curie"]},
    relations=["directed_by"],
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("the spouse of marguerite_of_france ?", ["marguerite_of_france"]),
        ("Who was Marguerite of France's father?", ["marguerite_of_france"]),
        ("Who founded the Order of New Velm?", ["Order_of_New_Velm"]),
        ("Is Velm near New Velm?", ["Velm", "New Velm"]),
        ("Where did Marie Curie meet PierreCurie?",
         ["http://dbpedia.org/resource/Marie_Curie", "http://x.org/y#PierreCurie"]),
        ("Who taught Irene Joliot Curie?", ["/m/0abc"]),
        ("What is /m/0abc?", ["/m/0abc"]),
        ("who is the director of Maya", ["Maya"]),
        ("who is the Director of Maya", ["director", "Maya"]),
        ("who is the director", ["director"]),
        ("who acted together with Marie Curie", ["http://dbpedia.org/resource/Marie_Curie"]),
        ("Where was the director of Maya (1999 Film) born?", ["Maya"]),
        ("Was Maya made in 1999?", ["Maya", "1999"]),
        ("who's older, Marie Curie?", ["http://dbpedia.org/resource/Marie_Curie"]),
        ("How far away is Mercury?", ["Mercury (planet)"]),
        ("Who was Henry Lascelles, 5th Earl of Harewood?", []),
        ("Who was Reo Fortune's wife?", ["Reo Franklin Fortune"]),
    ],
)  # fmt: skip
def test_names_of_real_graphs_are_linked_and_nothing_else(text: str, names: list[str]) -> None:
    assert entities(text, ODD) == names


def test_an_entity_is_found_by_any_spelling_of_its_name() -> None:
    assert ODD.find("MARGUERITE of France") == ["marguerite_of_france"]
    assert ODD.find("marie curie") == ["http://dbpedia.org/resource/Marie_Curie"]
    assert ODD.find("nobody") == []
