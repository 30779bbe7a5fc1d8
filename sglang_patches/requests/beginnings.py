# SPDX-License-Identifier: Apache-2.0
"""A path of one entity, where it stands for all paths that begin with this entity.

The tokens of "Paris" begin those of "Paris Hilton" as well. What tells the two apart is the
separator in front of the next element, so here the tokens of an entity end with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import Any

from depcache.prompt.template import Template, get_template
from depcache.prompt.tokenization import PromptTokenizer, get_prompt_tokenizer

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


def closing_of(template: str | None, tokenizer: Any) -> list[int]:
    """What goes behind an entity that stands alone, here and now; [] where nothing does.

    template  its name; None where the request names none
    """
    if template is None or not _is_asked.get():
        return []
    return closing_ids(get_template(template), get_prompt_tokenizer(tokenizer))


def closing_ids(template: Template, tokenizer: PromptTokenizer) -> list[int]:
    """What the tokens of every relation begin with; [] where they have nothing in common."""
    pieces = [template.pieces(("a", probe))[1] for probe in _PROBES]
    columns = zip(*tokenizer.encode_elements(pieces), strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
