# SPDX-License-Identifier: Apache-2.0
"""Other words around the facts, other places and spellings: is all of it still there?"""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from depcache.prompt.layout import LAYOUTS
from depcache.prompt.outline import Outline
from depcache.training.examples import Example
from depcache.training.samples import Encoder
from models.tiny.rows import question_rows
from models.tiny.styles import (
    PASSAGES,
    SPELLINGS,
    Style,
    Styles,
    draw_style,
    load_words,
    make_passages,
    say,
)
from models.tiny.train import make_vocabulary
from models.tiny.worlds import make_examples

pytestmark = pytest.mark.sglang  # torch and transformers come with the server

PATHS = (
    ("Ann", "teaches", "Bob", "lives in", "Rome"),
    ("Ann", "lives in", "Oslo"),
    ("Rome", "inverse of born in", "Cid"),
)
EXAMPLE = Example("Where does the one whom Ann teaches live?", PATHS, "Rome")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_vocabulary(512)


def test_the_first_style_is_that_of_render(tokenizer: Any) -> None:
    for attention in ("dependency", "flat"):
        own, other = (
            Encoder(tokenizer, attention, write=write).encode(EXAMPLE, "staggered")  # type: ignore[arg-type]
            for write in (None, Styles(0.0))
        )
        assert np.array_equal(own.tokens, other.tokens)
        assert np.array_equal(own.ends, other.ends) and np.array_equal(
            own.positions, other.positions
        )


@pytest.mark.parametrize("place", ["system", "user"])
@pytest.mark.parametrize("spelling", [*SPELLINGS, PASSAGES])
def test_facts_stand_once_in_their_place(tokenizer: Any, spelling: str, place: str) -> None:
    style = Style(spelling, place, "Read.", "Known:", "Q: {question}", "{title}: {text}")
    rendered = style.write(EXAMPLE, "tree")
    system, user = (each["content"] for each in rendered.messages)
    held, empty = (system, user) if place == "system" else (user, system)
    assert f"Known:{rendered.flat_text}" in held and rendered.flat_text not in empty
    assert user.endswith("Q: Where does the one whom Ann teaches live?")
    for name in ("Ann", "Bob", "Rome", "Oslo", "Cid"):
        assert name in rendered.flat_text
    outline = Outline.from_json(rendered.extra_body["custom_params"]["depcache_outline"])
    assert outline.merge == (spelling == "path")
    for attention in ("dependency", "flat"):
        for layout in LAYOUTS:
            encoder = Encoder(tokenizer, attention, write=style.write)  # type: ignore[arg-type]
            sample = encoder.encode(EXAMPLE, layout)
            text = tokenizer.decode(sample.tokens)
            assert "Read." in text and "Known:" in text and "Oslo" in text


def test_a_row_that_is_not_merged_stands_whole() -> None:
    two = Example("?", (("Ann", "knows", "Bob"), ("Ann", "likes", "Bob")), "Bob")
    for is_merged in (True, False):
        written = Style(is_merged=is_merged).write(two, "tree").extra_body["custom_params"]
        assert Outline.from_json(written["depcache_outline"]).merge == is_merged


def test_without_facts_there_is_only_a_question() -> None:
    messages = Style(system="").write(Example("Who?", (), "Nobody"), "tree").messages
    assert messages == [{"role": "user", "content": "Who?"}]


def test_passages_say_each_fact_once_and_the_right_way_round() -> None:
    assert say("Rome", "inverse of born in", "Cid") == ("Cid", "Cid born in Rome.")
    passages = make_passages((*PATHS, ("Bob", "lives in", "Rome")), "# {title}\n{text}")
    assert passages == [
        "# Ann\nAnn teaches Bob. Ann lives in Oslo.",
        "# Bob\nBob lives in Rome.",
        "# Cid\nCid born in Rome.",
    ]


def test_a_share_of_the_contexts_has_another_style_and_all_questions_about_it_the_same() -> None:
    examples = list(islice(make_examples(3, num_questions=4), 600))
    write = Styles(0.3, seed=1)
    by_paths: dict[Any, set[str]] = {}
    for example in examples:
        if example.paths:
            written = write(example, "tree")
            said = str(written.messages).replace(example.question, "")
            by_paths.setdefault(example.paths, set()).add(said)
    assert {len(said) for said in by_paths.values()} == {1}
    own = {paths for paths in by_paths if by_paths[paths] == _own(paths)}
    assert 0.55 < len(own) / len(by_paths) < 0.85


def _own(paths: Any) -> set[str]:
    return {str(Style().write(Example("??", paths, "-"), "tree").messages).replace("??", "")}


def test_every_spelling_place_and_wording_is_drawn() -> None:
    rng = random.Random(0)
    drawn = [draw_style(rng) for _ in range(2000)]
    assert {style.spelling for style in drawn} == {*SPELLINGS, PASSAGES}
    places = Counter(style.place for style in drawn)
    assert 0.3 < places["system"] / len(drawn) < 0.5
    words = load_words()
    assert {style.system for style in drawn} >= set(words["systems"])
    assert all("{question}" in text for text in words["questions"])
    assert all("{text}" in text for text in words["titles"])


def test_rows_of_other_styles_are_other_rows(tokenizer: Any) -> None:
    def rows(share: float) -> set[bytes]:
        made = question_rows(tokenizer, "dependency", 5, row_tokens=1024, other_styles=share)
        return {row.tokens.tobytes() for row in islice(made, 30)}

    assert rows(0.0) == rows(0.0)
    assert not rows(1.0) & rows(0.0)
