# SPDX-License-Identifier: Apache-2.0
"""The facts of the request that is about to be made, for code that cannot pass them along.

A framework builds the prompt and calls the SDK somewhere deep inside. `graph_context` says
from outside which paths the prompt holds; the transport reads it when the request goes out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from depcache.prompt.layout_names import Layout, read_layout
from depcache.prompt.paths import Path, read_paths
from depcache.prompt.template import Template, get_template

MARKER = "{{graph_context}}"
"""Stands in a message for the facts, which the transport puts in its place."""

_current: ContextVar[GraphContext | None] = ContextVar("depcache_graph_context", default=None)


class GraphContext:
    """Paths and how to write them; see `graph_context`. `str()` of it is the facts as text."""

    def __init__(self, paths: Iterable[Any], template: str | Template, layout: Layout) -> None:
        self.template = get_template(template)
        self.layout: Layout = read_layout(layout)
        self.paths: list[Path] = list(dict.fromkeys(read_paths(paths)))
        self.text = self.template.flatten(self.paths)
        self._tokens: list[Token[GraphContext | None]] = []

    def __str__(self) -> str:
        return self.text

    def __enter__(self) -> GraphContext:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.reset(self._tokens.pop())


def graph_context(
    paths: Iterable[Any], *, template: str | Template = "path", layout: Layout = "tree"
) -> GraphContext:
    """Requests made inside the `with` block are about these paths.

        with depcache.graph_context(paths) as facts:
            client.chat.completions.create(model=..., messages=[
                {"role": "user", "content": f"Facts:{facts}\\n\\nWho founded SpaceX?"}])

    A message holds the facts as text, or `MARKER` in their place; otherwise the request goes
    out unchanged and a warning is logged. Works through `asyncio` tasks, not through threads
    that were not started with `contextvars.copy_context()`.

    paths     anything `depcache.prompt.paths.read_paths` takes
    template  a `Template`, or the name of one
    layout    position layout of the request

    Raises PromptError when a path or the template is unusable.
    """
    return GraphContext(paths, template, layout)


def current_context() -> GraphContext | None:
    """The innermost `graph_context` around the caller; None outside of all."""
    return _current.get()
