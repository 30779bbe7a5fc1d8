# SPDX-License-Identifier: Apache-2.0
"""Neighbours of chunks: by the cosine of vectors, and from a file of ids."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depcache.errors import ConfigError, PromptError
from depcache.graph.pruning import has_minilm
from depcache.precompute import Chunk, find_similar, read_neighbours

CHUNKS = [Chunk(name, f"Text {name}.") for name in "abcd"]


def names_of(found: Any) -> dict[str, list[str]]:
    return {name: [chunk.id for chunk in some] for name, some in found.of.items()}


def encode(texts: Sequence[str]) -> np.ndarray:
    """Vectors at angles of 0, 0.3, 1.2 and 2.7 for a, b, c and d."""
    angles = np.array([0.3 * (ord(text[5]) - ord("a")) ** 2 for text in texts])
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def test_the_most_similar_comes_last() -> None:
    found = find_similar(CHUNKS, 2, encode)
    assert names_of(found) == {"a": ["c", "b"], "b": ["c", "a"], "c": ["a", "b"], "d": ["b", "c"]}
    assert (found.number, found.recipe) == (2, "2 by an embedding")
    assert find_similar(CHUNKS, 9, encode).of["a"][0].id == "d"


def test_of_more_chunks_than_fit_a_block_it_is_as_by_hand() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(1500, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    chunks = [Chunk(str(n), f"Text {n}.") for n in range(1500)]
    found = find_similar(chunks, 3, lambda texts: vectors)
    for number in (0, 1023, 1024, 1499):
        alike = np.round(vectors @ vectors[number], 4)
        alike[number] = -np.inf
        best = np.argsort(-alike, kind="stable")[:3][::-1]
        assert [int(chunk.id) for chunk in found.of[str(number)]] == best.tolist()


def test_equal_texts_are_no_neighbours_of_each_other() -> None:
    twins = [Chunk("1", "Text a."), Chunk("2", "Text a."), Chunk("3", "Text b.")]
    assert names_of(find_similar(twins, 5, encode)) == {"1": ["3"], "2": ["3"], "3": ["1"]}
    assert find_similar(twins[:2], 5, encode).of == {}


@pytest.mark.skipif(not has_minilm(), reason="needs the extra embed")
def test_by_minilm_texts_about_one_thing_are_alike() -> None:
    texts = ["The cat sat on the mat.", "A kitten lay on the rug.", "Shares fell on Monday."]
    found = find_similar([Chunk(str(n), text) for n, text in enumerate(texts)], 1)
    assert names_of(found)["0"] == ["1"] and names_of(found)["1"] == ["0"]
    assert found.recipe == "1 by minilm"


@pytest.mark.parametrize("name", ["near.jsonl", "near.jsonl.gz"])
def test_a_file_names_them(tmp_path: Path, name: str) -> None:
    rows = [
        {"id": "a", "neighbours": ["b", "c", "d"]},
        {"id": "c", "neighbours": []},
        {"id": "d", "neighbours": ["a", "b", "d", "a"]},
    ]
    data = "".join(json.dumps(row) + "\n\n" for row in rows).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = read_neighbours(tmp_path / name, CHUNKS, 2)
    assert names_of(found) == {"a": ["c", "d"], "d": ["b", "a"]}
    assert found.recipe == "2 by file"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "it is no JSON"),
        ("[1]", "write an object with id and neighbours"),
        ('{"id": "a"}', "write an object with id and neighbours"),
        ('{"id": "x", "neighbours": []}', "no chunk has the id 'x'"),
        ('{"id": "a", "neighbours": ["x"]}', "no chunk has the id 'x'"),
        ('{"id": "a", "neighbours": [true]}', "no chunk has the id True"),
        ('{"id": "b", "neighbours": []}', "the id 'b' was there before"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "near.jsonl"
    file.write_text('{"id": "b", "neighbours": ["a"]}\n' + line + "\n")
    with pytest.raises(PromptError, match=f"line 2 of .*{why}"):
        read_neighbours(file, CHUNKS)


def test_a_file_that_is_not_there_and_no_neighbours_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot read"):
        read_neighbours(tmp_path / "none.jsonl", CHUNKS)
    with pytest.raises(ConfigError, match="choose at least 1"):
        find_similar(CHUNKS, 0, encode)
