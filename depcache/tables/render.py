# SPDX-License-Identifier: Apache-2.0
"""Write tables of a catalog into an OpenAI chat request, each as a row that stands for itself.

No table sees another one: a table's KV is decided by the system message and the table, so it is
reused in every later prompt, whichever tables stand beside it and in whatever order. Against the
flat prompt that is approximate twice. *Visibility*: a table does not see those before it.
*Placement*: with layout `tree` every table begins right behind the system.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM, RenderedPrompt, render_rows
from depcache.tables.catalog import Catalog

HEADING = "Tables:"


@dataclass(frozen=True)
class RenderedTables(RenderedPrompt):
    """A prompt about tables, and which.

    tables    names of those in the prompt, in its order: what is referred to comes first
    added     those of them that were not asked for, but referred to
    left_out  tables that are referred to and are not in the prompt: unknown to the catalog, or
              more than `max_tables`
    """

    tables: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def render_tables(
    catalog: Catalog,
    names: Iterable[str] | None,
    question: str,
    *,
    system: str | None = DEFAULT_TABLE_SYSTEM,
    close: bool = True,
    max_tables: int | None = None,
    layout: Layout = "tree",
) -> RenderedTables:
    """A chat request that asks `question` about tables of a catalog.

    names       in any order and any case, each once or more; None for all of the catalog
    question    goes behind them
    system      the system message; None or "" for no system message
    close       add the tables that the wanted ones refer to, directly or not: SQL needs them to
                join, and the prompt then shares them with others
    max_tables  where `close` would make more of them, none is added; what was asked for stays
    layout      position layout of the request

    Raises PromptError for a name that is not in the catalog, no names, or an unusable question.
    """
    wanted = catalog.names if names is None else _read_names(names)
    wanted = {catalog.find(name) for name in wanted}
    if not wanted:
        raise PromptError("there are no tables: name at least one, or send a plain prompt")
    if max_tables is not None and (type(max_tables) is not int or max_tables < 1):
        raise PromptError(f"max_tables is {shorten(max_tables)}: send a number from 1 on, or None")
    references = catalog.references
    closed = references.closure(wanted)
    has_room = max_tables is None or len(closed) <= max_tables
    tables = closed if close and has_room else references.sort(wanted)
    known = {target for name in tables for target in catalog[name].references}
    texts = [catalog[name].text for name in tables]
    prompt = render_rows(texts, question, heading=HEADING, system=system, layout=layout)
    return RenderedTables(
        prompt.messages,
        prompt.extra_body,
        prompt.flat_text,
        tables=tables,
        added=tuple(name for name in tables if name not in wanted),
        left_out=tuple(sorted(known.difference(tables))),
    )


def _read_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise PromptError(f"the tables are one text, {shorten(names)}: send a list of names")
    return list(names)
