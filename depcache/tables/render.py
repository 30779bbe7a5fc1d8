# SPDX-License-Identifier: Apache-2.0
"""Write tables of a catalog into an OpenAI chat request, each as a row that says what it sees.

A table's KV is decided by the system message, the table and the *set* of tables that it sees, so it
is reused in every later prompt in which it sees the same, in whatever order. What is not in the
prompt is never seen. Against the flat prompt that is approximate twice. *Visibility*: a table does
not see all those before it. *Placement*: with layout `tree` a table begins right behind the system,
or behind the deepest of what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM, RenderedPrompt, render_rows
from depcache.tables.catalog import Catalog
from depcache.tables.seen import DEFAULT_SEES, Sees, count_absent, read_sees, see

HEADING = "Tables:"


@dataclass(frozen=True)
class RenderedTables(RenderedPrompt):
    """A prompt about tables, and which.

    tables    names of those in the prompt, in its order: what is referred to comes first
    added     those of them that were not asked for, but referred to
    left_out  tables that are referred to and are not in the prompt: unknown to the catalog, or
              more than there was room for
    sees      what a table of the prompt sees
    """

    tables: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    sees: Sees = DEFAULT_SEES


def render_tables(
    catalog: Catalog,
    names: Iterable[str] | None,
    question: str,
    *,
    system: str | None = DEFAULT_TABLE_SYSTEM,
    sees: str = DEFAULT_SEES,
    close: bool = True,
    max_tables: int | None = None,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
    layout: Layout = "tree",
) -> RenderedTables:
    """A chat request that asks `question` about tables of a catalog.

    names       in any order and any case, each once or more, or patterns, such as `album.*`; None
                for all of the catalog
    question    goes behind them
    system      the system message; None or "" for no system message
    sees        what a table sees beside itself, see `depcache.tables.seen.Sees`
    close       add the tables that the wanted ones refer to, directly or not: SQL needs them to
                join, and each table then sees the same in every prompt
    max_tables  where `close` would make more of them, columns included, none is added; what was
                asked for stays
    max_tokens  the same where their texts would have more tokens; counted by `count_tokens`
    layout      position layout of the request

    Raises PromptError for a name that is not in the catalog, no names, or an unusable question.
    """
    seen_by = read_sees(sees)
    wanted = catalog.select(catalog.names if names is None else _read_names(names))
    if not wanted:
        raise PromptError("there are no tables: name at least one, or send a plain prompt")
    for what, most in (("max_tables", max_tables), ("max_tokens", max_tokens)):
        if most is not None and (type(most) is not int or most < 1):
            raise PromptError(f"{what} is {shorten(most)}: send a number from 1 on, or None")
    if max_tokens is not None and count_tokens is None:
        raise PromptError("max_tokens came without count_tokens: send what counts a text's tokens")
    references = catalog.references
    tables = references.sort(wanted)
    if close:
        closed = references.closure(wanted)
        has_room = max_tables is None or len(closed) <= max_tables
        if has_room and max_tokens is not None and count_tokens is not None:
            has_room = sum(count_tokens(catalog[name].text) for name in closed) <= max_tokens
        tables = closed if has_room else tables
    known = {target for name in tables for target in catalog[name].references}
    # Two tables may be written alike, say of two schemas: they are one row.
    texts = dict.fromkeys(catalog[name].text for name in tables)
    row_of = {text: row for row, text in enumerate(texts)}
    seen: list[set[int]] = [set() for _ in texts]
    for name, others in see(catalog, tables, seen_by).items():
        row = row_of[catalog[name].text]
        seen[row].update(row_of[catalog[other].text] for other in others)
        seen[row].discard(row)
    prompt = render_rows(
        texts,
        question,
        heading=HEADING,
        system=system,
        layout=layout,
        sees=[sorted(rows) for rows in seen],
        absent=count_absent(catalog, tables),
    )
    return RenderedTables(
        prompt.messages,
        prompt.extra_body,
        prompt.flat_text,
        tables=tables,
        added=tuple(name for name in tables if name not in wanted),
        left_out=tuple(sorted(known.difference(tables))),
        sees=seen_by,
    )


def _read_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise PromptError(f"the tables are one text, {shorten(names)}: send a list of names")
    return list(names)
