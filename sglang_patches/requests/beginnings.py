# SPDX-License-Identifier: Apache-2.0
"""A path of one entity, where it stands for all paths that begin with this entity.

The tokens of "Paris" begin those of "Paris Hilton" as well. What tells the two apart is the
separator in front of the next element, so here the tokens of an entity end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import takewhile

from depcache.prompt.nodes import TreeNode
from depcache.prompt.template import Template, get_template
from depcache.prompt.tokenization import PromptTokenizer

# Their first characters are of every kind that a tokenizer may join to a separator.
_PROBES = ("a", "A", "1", "~a", "(", "é", "中")

_is_asked: ContextVar[bool] = ContextVar("depcache_beginnings", default=False)


@contextmanager
def entities_are_beginnings() -> Iterator[None]:
    """Text form that is converted in this block has its entities closed by the separator."""
    token = _is_asked.set(True)
    try:
        yield
    finally:
        _is_asked.reset(token)


def context_class() -> type[TreeNode]:
    """What the paths of a request are made into, here and now."""
    return BeginningNode if _is_asked.get() else TreeNode


@dataclass(frozen=True)
class BeginningNode(TreeNode):
    """Paths, of which those of one element are followed by the separator of the next."""

    def encode(self, tokenizer: PromptTokenizer | None, *, first: bool = False) -> list[list[int]]:
        """Returns the token ids of each of `lines`."""
        sequences = super().encode(tokenizer, first=first)
        if tokenizer is None:
            return sequences
        closing = closing_ids(get_template(self.template), tokenizer)
        return [
            ids + closing if len(line) == 1 else ids
            for line, ids in zip(self.lines, sequences, strict=True)
        ]


def closing_ids(template: Template, tokenizer: PromptTokenizer) -> list[int]:
    """What the tokens of every relation begin with; [] where they have nothing in common."""
    pieces = [template.pieces(("a", probe))[1] for probe in _PROBES]
    columns = zip(*tokenizer.encode_elements(pieces), strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
