# SPDX-License-Identifier: Apache-2.0
"""Merge token sequences into the segments of a compressed prefix tree (paper, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Context = tuple[list[int], list[int], list[int]]
"""Tokens, and lengths and parents of the segments, in pre-order; parent -1 is a root."""


class _Branch:
    """A run of tokens, kept as a span of a sequence that contains it: no copies on a split."""

    __slots__ = ("children", "number", "source", "start", "stop")

    def __init__(self, source: list[int], start: int, stop: int) -> None:
        self.source = source
        self.start = start
        self.stop = stop
        self.children: dict[int, _Branch] | None = None  # by first token; None is a leaf
        self.number = -1  # of its segment


def merge_sequences(sequences: Iterable[list[int]]) -> Context:
    """Returns tokens, lengths and parents of the segments, in pre-order.

    Equal leading tokens merge, so siblings start with different tokens; a sequence that is a
    prefix of another vanishes in it; a segment is maximal. Children come in the order of their
    first appearance, and the *set* of segments does not depend on the order of the sequences.

    A step of Python per segment a sequence passes; tokens are compared as slices. The
    sequences must be lists and are kept, not copied, until this returns.
    """
    roots: dict[int, _Branch] = {}
    for sequence in sequences:
        _insert(roots, sequence)
    return _number(roots)


def merge_sequences_whole(sequences: Sequence[list[int]]) -> tuple[Context, list[int]]:
    """The same, but where a sequence ends a segment ends; returns of each sequence its segment.

    So a prefix of another sequence does not vanish in it: the rest of the other hangs below it.
    """
    roots: dict[int, _Branch] = {}
    for sequence in sequences:
        _insert(roots, sequence, cuts=True)
    context = _number(roots)
    ends: list[int] = []
    for sequence in sequences:
        node, i = roots[sequence[0]], 0
        while (i := i + node.stop - node.start) < len(sequence):
            assert node.children is not None
            node = node.children[sequence[i]]
        ends.append(node.number)
    return context, ends


def _number(roots: dict[int, _Branch]) -> Context:
    """The segments, which learn their numbers."""
    tokens: list[int] = []
    lens: list[int] = []
    parents: list[int] = []
    stack = [(node, -1) for node in reversed(roots.values())]
    while stack:
        node, parent = stack.pop()
        number = node.number = len(lens)
        tokens += node.source[node.start : node.stop]
        lens.append(node.stop - node.start)
        parents.append(parent)
        if node.children is not None:
            stack += [(child, number) for child in reversed(node.children.values())]
    return tokens, lens, parents


def _insert(roots: dict[int, _Branch], sequence: list[int], *, cuts: bool = False) -> None:
    """Add a sequence. `cuts`: a segment ends where it ends, and where others have ended."""
    num_tokens = len(sequence)
    children = roots
    i = 0  # tokens of `sequence` already in the tree
    while i < num_tokens:
        node = children.get(sequence[i])
        if node is None:
            children[sequence[i]] = _Branch(sequence, i, num_tokens)
            return
        node_len = node.stop - node.start
        num_equal = _common_len(sequence, i, node.source, node.start, min(node_len, num_tokens - i))
        i += num_equal
        if i == num_tokens and not (cuts and num_equal < node_len):
            return
        if num_equal == node_len:
            if node.children is None and cuts:
                node.children = {}
            if node.children is None:
                # The leaf was a prefix of this sequence: it grows, and stays one segment.
                node.source, node.start, node.stop = sequence, i - node_len, num_tokens
                return
            children = node.children
        else:
            # before:  [ node ...................... ] -> children
            # after:   [ node ... ] -> [ lower ..... ] -> children
            #                       -> [ the rest of `sequence` ]
            middle = node.start + num_equal
            lower = _Branch(node.source, middle, node.stop)
            lower.children = node.children
            node.stop = middle
            node.children = {node.source[middle]: lower}
            if i < num_tokens:
                node.children[sequence[i]] = _Branch(sequence, i, num_tokens)
            return


def _common_len(a: list[int], i: int, b: list[int], j: int, num_tokens: int) -> int:
    """How many of the next `num_tokens` tokens of a[i:] and b[j:] are equal."""
    if a[i : i + num_tokens] == b[j : j + num_tokens]:
        return num_tokens
    low, high = 0, num_tokens  # the first `low` are equal, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if a[i + low : i + middle] == b[j + low : j + middle]:
            low = middle
        else:
            high = middle
    return low
