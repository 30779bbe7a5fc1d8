# SPDX-License-Identifier: Apache-2.0
"""The picture of the tree: words, whatever stands in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.sglang


class Letters:
    """A tokenizer whose tokens are letters."""

    def batch_decode(self, sequences: list[list[int]]) -> list[str]:
        # As the one of transformers, which takes an empty list for one empty sequence.
        return ["".join(map(chr, tokens)) for tokens in sequences or [[]]]


def make_dump(*texts: str) -> dict[str, Any]:
    from sglang_patches.observe.stats import MAX_SHOWN_TOKENS

    nodes = [
        {
            "node": number,
            "parent": number - 1 if number else None,
            "tokens": [ord(letter) for letter in text][:MAX_SHOWN_TOKENS],
            "num_tokens": len(text),
            "position": 3,
            "tiers": ["device"] if number else [],
            "hits": 2,
        }
        for number, text in enumerate(texts)
    ]
    return {"nodes": nodes, "is_cut": False}


def test_nodes_are_shown_by_their_words() -> None:
    from sglang_patches.observe.stats import add_text, to_dot

    dump = make_dump("Marie Curie", "x" * 40)
    add_text(dump, Letters())
    assert [node["text"] for node in dump["nodes"]] == ["Marie Curie", "x" * 32 + "…"]
    assert to_dot(dump).splitlines()[2:5] == [
        '  n0 [label="Marie Curie\\n11 tokens at 3, 2 hits", style=dashed];',
        f'  n1 [label="{"x" * 32}…\\n40 tokens at 3, 2 hits", style=solid];',
        "  n0 -> n1;",
    ]


def test_a_token_that_is_none_has_no_text_and_without_a_tokenizer_there_are_numbers() -> None:
    from sglang_patches.observe.stats import add_text

    dump = make_dump("ab", "cd")
    dump["nodes"][0]["tokens"][1:] = [-1]
    add_text(dump, Letters())
    assert [node["text"] for node in dump["nodes"]] == ["a", "cd"]
    dump = make_dump("ab")
    add_text(dump, None)
    assert dump["nodes"][0]["text"] == "97 98"


def test_an_empty_tree_has_no_text() -> None:
    from sglang_patches.observe.stats import add_text, to_dot

    dump = make_dump()
    add_text(dump, Letters())
    assert dump["nodes"] == []
    assert to_dot(dump).startswith("digraph")


def test_no_text_leaves_its_label() -> None:
    from sglang_patches.observe.stats import add_text, to_dot

    dump = make_dump('a"];\n n9 [label="b\\')
    add_text(dump, Letters())
    assert 'label="a\\"]; n9 [label=\\"b\\\\\\n' in to_dot(dump)
    assert to_dot(dump).count("\n") == 4


def test_a_patch_has_no_words() -> None:
    from depcache.cache import KVTree, TierStack
    from depcache.cache.node import PATCH_MARK
    from depcache.cache.radix import to_key
    from sglang_patches.observe.stats import dump_tree
    from sglang_patches.requests.tenants import Namespace

    tree = KVTree()
    for number, behind in enumerate((b"", PATCH_MARK + b"of a row")):
        slots = np.arange(3) + 3 * number
        tree.insert(tree.root(Namespace(None), behind), to_key(np.array([7, 8, 9])), slots, 0)
    dump = dump_tree(SimpleNamespace(tree=tree, tiers=TierStack()), 10)
    assert sorted(node["tokens"] for node in dump["nodes"]) == [[], [7, 8, 9]]
    assert [node["num_tokens"] for node in dump["nodes"]] == [3, 3]
