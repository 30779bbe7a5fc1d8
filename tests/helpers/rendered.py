# SPDX-License-Identifier: Apache-2.0
"""The paths that a request names, read back from its text."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from depcache.prompt.template import get_template
from depcache.prompt.wire import WireOutline, WireText, parse_wire


def paths_of(body: dict[str, Any]) -> list[tuple[str, ...]]:
    """The paths of a chat or completion, as its template wrote them; both versions of the wire."""
    wire = parse_wire(body["custom_params"])
    if isinstance(wire, WireText):
        return wire.paths
    assert isinstance(wire, WireOutline)
    outline = wire.outline
    text = body["prompt"] if outline.message is None else text_of(body["messages"][outline.message])
    pieces = outline.pieces(text)
    template = get_template(wire.depcache_template or "path")
    rows = [pieces[a:b] for a, b in pairwise(accumulate(outline.rows, initial=0))]
    return [tuple(_elements(row, template)) for row in rows]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _elements(row: list[str], template: Any) -> list[str]:
    for number, piece in enumerate(row):
        mould = (
            template.first if number == 0 else template.relation if number % 2 else template.entity
        )
        before, after = mould.replace("{r}", "{e}").split("{e}")
        row[number] = piece.removeprefix(before).removesuffix(after)
    return row
