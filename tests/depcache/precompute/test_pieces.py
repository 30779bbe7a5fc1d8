# SPDX-License-Identifier: Apache-2.0
"""Pieces hold every path once, within their bound, and their size is that of their tree."""

from hypothesis import given
from hypothesis import strategies as st

from depcache.graph.networkx_store import NetworkXStore
from depcache.precompute import GraphSource, PrecomputeSettings
from depcache.precompute.pieces import Piece, fill_requests, make_pieces, paths_of
from depcache.prompt.template import get_template

TEMPLATE = get_template("path")
SOURCE = GraphSource(NetworkXStore(), PrecomputeSettings(pruner="none"))
names = st.sampled_from(["a", "bb", "ccc", "d d"])
paths = st.lists(
    st.lists(names, min_size=1, max_size=2).map(lambda rest: ("e", *rest, *rest)), max_size=30
)


def chars_ref(lines):
    """Every distinct beginning adds the text of its last element."""
    found = {line[:stop] for line in lines for stop in range(1, len(line) + 1)}
    return sum(len(TEMPLATE.pieces(beginning)[-1]) for beginning in found)


@given(paths=paths, max_chars=st.integers(1, 200))
def test_an_entity_is_cut_into_pieces_that_fit(paths, max_chars):
    pieces = make_pieces("e", paths, TEMPLATE, max_chars)
    assert sorted(paths_of(pieces)) == sorted(set(paths))
    for piece in pieces:
        assert piece.num_chars == chars_ref(piece.paths)
        assert piece.num_chars <= max_chars or len(piece.paths) == 1


@given(paths=paths.filter(lambda paths: len(set(paths)) > 1))
def test_a_split_piece_loses_nothing(paths):
    [piece] = make_pieces("e", paths, TEMPLATE, float("inf"))
    parts = SOURCE.split(piece)
    assert len(parts) == 2
    assert paths_of(parts) == list(piece.paths)
    assert all(part.num_chars == chars_ref(part.paths) for part in parts)


@given(sizes=st.lists(st.integers(1, 50), max_size=40), max_chars=st.integers(1, 100))
def test_requests_are_as_full_as_their_bound_allows(sizes, max_chars):
    pieces = [Piece(str(i), (("e",),), size) for i, size in enumerate(sizes)]
    batches = list(fill_requests(pieces, max_chars))
    assert [piece for batch in batches for piece in batch] == pieces
    totals = [sum(piece.num_chars for piece in batch) for batch in batches]
    for total, batch in zip(totals, batches, strict=True):
        assert total <= max_chars or len(batch) == 1
    for total, following in zip(totals, batches[1:], strict=False):
        assert total + following[0].num_chars > max_chars


def test_triples_are_cut_before_they_are_counted():
    [piece] = make_pieces("a", [("a", "r", "b", "s", "c")], get_template("triple"), 1000)
    assert set(piece.paths) == {("a", "r", "b"), ("b", "s", "c")}
