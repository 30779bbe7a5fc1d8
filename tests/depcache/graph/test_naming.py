# SPDX-License-Identifier: Apache-2.0
"""One normal form for names as graphs have them and as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.graph.naming import fold, fold_text, local_name, readings, words_of

SPELLINGS = [
    "Nobel_Prize_in_Physics",
    "nobel-prize-in_physics",
    "NobelPrizeInPhysics",
    "http://dbpedia.org/resource/Nobel_Prize_in_Physics",
    "<http://x.org/y#NobelPrizeInPhysics>",
    "http://x.org/y/Nobel%20Prize%20in%20Physics/",
    "dbr:Nobel_Prize_in_Physics",
    "ＮＯＢＥＬ Prize  in\tPhysics",
]


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_spellings_have_one_reading_in_common(name: str) -> None:
    assert "nobel prize in physics" in set(readings(name))


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("http://x.org/a/Z%C3%BCrich", "Zürich"),
        ("http://x.org/", "x.org"),
        ("wd:Q42", "Q42"),
        ("Mission: Impossible", "Mission: Impossible"),
        ("AC/DC", "AC/DC"),
        ("/m/0abc", "/m/0abc"),
        ("100%", "100%"),
    ],
)
def test_only_addresses_are_shortened(name: str, last: str) -> None:
    assert local_name(name) == last


@given(text=st.text(max_size=40))
def test_folding_again_changes_nothing_and_every_letter_has_an_origin(text: str) -> None:
    for split in (False, True):
        folded = fold_text(text, split_camel=split)
        assert len(folded.text) == len(folded.origins)
        assert list(folded.origins) == sorted(folded.origins)
        assert fold(fold(folded.text)) == fold(folded.text)


def test_words_of_relations() -> None:
    assert words_of("http://dbpedia.org/ontology/birthPlace") == ("birth", "place")
    assert words_of("starred_actors") == ("starred", "actors")
