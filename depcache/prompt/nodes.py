# SPDX-License-Identifier: Apache-2.0
"""The parts that a prompt is written from: what every kind of node can do, and the kinds.

A prompt is a list of nodes (paper, section 5): a `LinearNode` is a plain sequence (system, task),
a `TreeNode` is a set of relation paths (context). `depcache.prompt.dep_prompt` makes prompts of
them and knows no kind: a new one is a class that does what `PromptNode` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from depcache.errors import PromptError, shorten
from depcache.prompt.paths import Path, read_paths
from depcache.prompt.template import Template, get_template
from depcache.prompt.tokenization import PromptTokenizer
from depcache.prompt.wire import MAX_TOKEN_ID

Content = str | Sequence[int] | NDArray[Any]
"""Trusted text, in which special tokens count, or token ids."""


class PromptNode(Protocol):
    """One part of a prompt.

    name        what other nodes call it in their `depends_on`
    depends_on  names of earlier nodes; None is the default of the prompt
    is_tree     its tokens see only their ancestors, so that no node but the last can see it whole
    lead        text that each of its sequences begins with; None if they have none in common
    flat_text   it as plain text, as a model without trees reads it
    """

    @property
    def name(self) -> str: ...
    @property
    def depends_on(self) -> Any: ...
    @property
    def is_tree(self) -> bool: ...
    @property
    def lead(self) -> str | None: ...
    @property
    def flat_text(self) -> str: ...

    def encode(self, tokenizer: PromptTokenizer | None, *, first: bool) -> list[list[int]]:
        """Returns the token ids of its sequences. Equal beginnings of them are stored once.

        first  nothing stands before this node
        """
        ...


@dataclass(frozen=True)
class LinearNode:
    """A plain sequence of tokens.

    name        what other nodes call it in their `depends_on`
    content     text or ids, kept as a tuple
    depends_on  names of earlier nodes; None is the default: the first node if it is a
                LinearNode (for the last node: all nodes), () is nothing
    """

    name: str
    content: Content
    depends_on: str | Iterable[str] | None = None

    def __post_init__(self) -> None:
        _read_names(self)
        if not isinstance(self.content, str):
            object.__setattr__(self, "content", _read_ids(self.content, self.name))

    def encode(self, tokenizer: PromptTokenizer | None, *, first: bool) -> list[list[int]]:
        """Returns one sequence, which may be empty."""
        if not isinstance(self.content, str):
            return [list(self.content)]
        if self.content and tokenizer is None:
            raise PromptError(f"node {self.name!r} is text: a tokenizer is needed")
        return [tokenizer.encode_text(self.content, first=first) if tokenizer else []]

    @property
    def is_tree(self) -> bool:
        return False

    @property
    def lead(self) -> None:
        return None

    @property
    def flat_text(self) -> str:
        """The text; "" where the content is ids."""
        return self.content if isinstance(self.content, str) else ""


@dataclass(frozen=True)
class TreeNode:
    """Relation paths, whose tokens see only their ancestors.

    name        what other nodes call it in their `depends_on`
    paths       anything `depcache.prompt.paths.read_paths` takes; kept as a tuple of paths
    template    a `Template` or the name of one
    depends_on  as for `LinearNode`; only LinearNodes can be named
    """

    name: str
    paths: Iterable[Any]
    template: str | Template = "path"
    depends_on: str | Iterable[str] | None = None
    lines: list[Path] = field(init=False, repr=False, compare=False)
    """The paths as they are written: cut by the template, each once, in order."""

    def __post_init__(self) -> None:
        _read_names(self)
        template = get_template(self.template)
        paths = tuple(read_paths(self.paths))
        object.__setattr__(self, "template", template)
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "lines", template.lines(paths))

    def encode(self, tokenizer: PromptTokenizer | None, *, first: bool = False) -> list[list[int]]:
        """Returns the ids of each of `lines`, element by element, wherever the node stands."""
        if not self.lines:
            return []
        if tokenizer is None:
            raise PromptError(f"node {self.name!r} holds paths: a tokenizer is needed")
        template = get_template(self.template)
        pieces: list[str] = []
        indptr = [0]
        for line in self.lines:
            pieces += template.pieces(line)
            indptr.append(len(pieces))
        ids = tokenizer.encode_elements(pieces)
        sequences: list[list[int]] = []
        for start, stop in pairwise(indptr):
            sequence: list[int] = []
            for piece in ids[start:stop]:
                sequence += piece
            sequences.append(sequence)
        return sequences

    @property
    def is_tree(self) -> bool:
        return True

    @property
    def lead(self) -> str | None:
        """The template's separator before every line; None without lines."""
        return get_template(self.template).lead if self.lines else None

    @property
    def flat_text(self) -> str:
        """The context as plain text."""
        return get_template(self.template).flatten(self.lines)


def _read_names(node: PromptNode) -> None:
    if not isinstance(node.name, str) or not node.name:
        raise PromptError(f"the node name {shorten(node.name)} must be a string that is not empty")
    if node.depends_on is not None:
        depends_on = node.depends_on
        names = (depends_on,) if isinstance(depends_on, str) else tuple(depends_on)
        object.__setattr__(node, "depends_on", names)


def _read_ids(ids: Any, name: str) -> tuple[int, ...]:
    """Token ids as a tuple of ints; PromptError when they are none."""
    kinds = {ids.dtype.type} if isinstance(ids, np.ndarray) else set(map(type, ids))
    for kind in kinds:
        if kind is not int and not issubclass(kind, np.integer):
            raise PromptError(f"the ids of node {name!r} are {shorten(ids)}: they must be ints")
    result = tuple(int(token) for token in ids)
    if result and not (min(result) >= 0 and max(result) <= MAX_TOKEN_ID):
        raise PromptError(
            f"the ids of node {name!r} reach from {shorten(min(result))} to "
            f"{shorten(max(result))}: token ids are 0 to {MAX_TOKEN_ID}"
        )
    return result
