# SPDX-License-Identifier: Apache-2.0
"""An entity that stands for its trees is told apart from one whose name begins alike."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.prompt.template import Template, register_template
from depcache.prompt.wire import WireText, parse_wire

pytestmark = pytest.mark.sglang

PATHS = [
    ("Paris", "capital of", "France"),
    ("Paris", "~born in", "Ann"),
    ("Paris Hilton", "1990", "LA"),
    ("Paris-Nice", "is", "a race"),
]


@pytest.fixture(scope="module")
def tokenizer():
    from tests.helpers.models import make_tokenizer

    return make_tokenizer()


def convert(paths, tokenizer, template="path"):
    """The prompt that the server makes of a text."""
    import json

    from depcache.prompt.template import get_template
    from sglang_patches.requests.inbound import read_text

    params = {
        "depcache_version": 1,
        "depcache_template": template,
        "depcache_paths": json.dumps(paths),
    }
    wire = parse_wire(params)
    assert isinstance(wire, WireText)
    text = f"Facts:{get_template(template).flatten(paths)}\nWho?"
    return read_text(text, wire, tokenizer, add_special_tokens=False)


def ways(prompt) -> set[tuple[int, ...]]:
    """The tokens from the start to each leaf of the context."""
    forest = prompt.forest
    result = set()
    for leaf in np.setdiff1d(np.arange(forest.num_segments), forest.parents).tolist():
        way, segment = [], leaf
        while segment >= 0:
            start = int(forest.starts[segment])
            way = prompt.tokens[start : start + int(forest.lens[segment])].tolist() + way
            segment = int(forest.parents[segment])
        result.add((*prompt.tokens[: forest.system_len].tolist(), *way))
    return result


@pytest.mark.parametrize("template", ["path", "triple"])
def test_each_entity_begins_its_own_paths_and_no_others(tokenizer, template) -> None:
    from sglang_patches.requests.beginnings import entities_are_beginnings

    trees = {
        name: ways(convert([path for path in PATHS if path[0] == name], tokenizer, template))
        for name in {path[0] for path in PATHS}
    }
    names = sorted(trees)
    with entities_are_beginnings():
        alone = {name: ways(convert([(name,)], tokenizer, template)) for name in names}
        together = ways(convert([(name,) for name in names], tokenizer, template))
    for name, [way] in alone.items():
        for other, tree in trees.items():
            assert all((full[: len(way)] == way) == (name == other) for full in tree)
    # One is the beginning of another by its tokens, and still none is lost among many.
    assert together == set().union(*alone.values())
    assert len(ways(convert([(name,) for name in names], tokenizer, template))) < len(names)


def test_longer_paths_are_as_they_were(tokenizer) -> None:
    from sglang_patches.requests.beginnings import entities_are_beginnings

    paths = [path for path in PATHS if len(path) > 1]
    expected = convert(paths, tokenizer)
    with entities_are_beginnings():
        assert convert(paths, tokenizer).tokens.tolist() == expected.tokens.tolist()
    assert convert([("Paris",)], tokenizer).num_tokens < expected.num_tokens


def test_a_separator_that_runs_into_the_relation_is_left_out(tokenizer) -> None:
    from sglang_patches.requests.beginnings import closing_ids

    def encode(texts: list[str]) -> list[list[int]]:
        return [[hash(text) % 1000] for text in texts]

    from depcache.prompt.tokenization import PromptTokenizer

    template = Template("no common separator")
    register_template(template)
    assert closing_ids(template, PromptTokenizer(encode)) == []
    assert closing_ids(template, PromptTokenizer(tokenizer)) != []
