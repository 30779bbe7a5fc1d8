# SPDX-License-Identifier: Apache-2.0
"""Files of chunks: what a line may hold, and what is said of one that may not be there."""

from __future__ import annotations

import gzip
import json

import pytest

from depcache.errors import PromptError
from depcache.precompute import Chunk, read_chunks
from depcache.precompute.chunk_file import find_predecessors

GOOD = {"id": "a-1", "text": "Ann lives in Oslo.", "title": "Ann", "document": "a", "number": 1}


@pytest.fixture
def write(tmp_path):
    """`write({...}, "a line")` gives a file of these lines."""

    def write(*lines):
        file = tmp_path / "chunks.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("\n".join(texts))
        return file

    return write


def test_chunks_come_in_the_order_of_the_file(write) -> None:
    file = write(GOOD, "", {"id": 7, "text": "Oslo.", "url": "not ours"})
    expected = [Chunk("a-1", "Ann lives in Oslo.", "Ann", "a", 1), Chunk("7", "Oslo.")]
    assert read_chunks(file) == expected
    packed = file.with_name("chunks.jsonl.gz")
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + file.read_bytes()))
    assert read_chunks(packed) == expected


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "it is no JSON"),
        ("[1]", "write an object"),
        ({"text": "x"}, "its id is None"),
        ({**GOOD, "id": True}, "its id is True"),
        ({"id": "x"}, "its text is None"),
        ({"id": "x", "text": " \n"}, "its text is"),
        ('{"id": "x", "text": "\\ud800"}', "half a surrogate pair"),
        ({"id": "x", "text": "y", "title": 3}, "its title is 3"),
        ({"id": "x", "text": "y", "document": []}, "its document is"),
        ({"id": "x", "text": "y", "number": "1"}, "its number is '1'"),
        ({**GOOD, "text": "another"}, "the id 'a-1' is that of line 1"),
    ],
)
def test_a_line_that_is_no_chunk_is_named_by_its_number(write, line, word) -> None:
    with pytest.raises(PromptError) as caught:
        read_chunks(write(GOOD, "", line))
    assert str(caught.value).startswith("line 3 of ")
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_or_holds_nothing_is_one_sentence(write, tmp_path) -> None:
    with pytest.raises(PromptError, match="holds no chunks"):
        read_chunks(write("", " "))
    with pytest.raises(PromptError, match="cannot read"):
        read_chunks(tmp_path / "missing")
    (tmp_path / "latin").write_bytes(b'{"id": "\xe9"}')
    with pytest.raises(PromptError, match="save it as UTF-8"):
        read_chunks(tmp_path / "latin")


def test_the_chunk_before_is_that_of_the_next_lower_number_in_the_document() -> None:
    first, other, last = (Chunk(f"a-{n}", "x", "", "a", n) for n in (-1, 4, 9))
    lone, alone = Chunk("b", "x", "", "b", 4), Chunk("c", "x")
    assert find_predecessors([last, lone, first, alone, other]) == {"a-4": first, "a-9": other}


def test_a_document_without_an_order_is_refused() -> None:
    with pytest.raises(PromptError, match="'a-1' is of document 'a', but has no number"):
        find_predecessors([Chunk("a-1", "x", "", "a")])
    with pytest.raises(PromptError, match="'a-1' and 'a-2' are both number 3 of document 'a'"):
        find_predecessors([Chunk("a-1", "x", "", "a", 3), Chunk("a-2", "x", "", "a", 3)])
