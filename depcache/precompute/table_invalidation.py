# SPDX-License-Identifier: Apache-2.0
"""After a change of a schema: the tables whose KV can hold it, and giving up just those.

That is a table that was changed or removed, and all that refer to it, since they were computed with
it in view. KV is found by tokens, so without this no answer uses what is old either: it gives back
room that nobody will use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from depcache.client.client import Client
from depcache.precompute.invalidation import Invalidation, give_up
from depcache.precompute.pieces import Piece
from depcache.precompute.progress_file import count_done, forget_entities
from depcache.precompute.table_source import TableSource
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog


def find_stale(old: Catalog, new: Catalog, *, state: str | FilePath | None = None) -> Invalidation:
    """The tables of `old` that a change to `new` can be in. Changes nothing."""
    difference = new.difference(old)
    return Invalidation(
        entities=difference.stale,
        num_named=len(difference.removed) + len(difference.changed),
        num_gone=len(difference.removed),
        num_forgotten=None if state is None else count_done(state, difference.stale),
    )


def invalidate_tables(
    old: Catalog,
    new: Catalog,
    client: Client,
    *,
    sees: str = "references",
    system: str | None = DEFAULT_TABLE_SYSTEM,
    fields: Mapping[str, Any] | None = None,
    state: str | FilePath | None = None,
    on_progress: Callable[[Invalidation], None] | None = None,
) -> Invalidation:
    """Have the server give up the tables of `old` that are not so in `new`, in every tier.

    Each is given up as closed prompts have it and as it is alone. What open prompts had is not
    looked for; it leaves the cache as whatever is not asked for.

    sees    what a table of the requests sees
    system  what stands before the tables, as `depcache.render_tables` has it
    fields  of the requests; a `cache_salt` among them means that tenant alone
    state   of a precomputation, in which these tables are to be computed again

    Raises ServerError when the server fails (what is done is done, and the same call goes on),
    ConfigError when the state is none.
    """
    found = find_stale(old, new, state=state)
    if state is not None:
        # First, so that whatever happens next nothing counts as done that is not there.
        forget_entities(state, found.entities)
    source = TableSource(old, sees=sees, system=system, fields=fields)
    # Those that are seen first: giving one up takes what hangs below it along.
    closed = [source.piece_of(name) for name in found.entities]
    alone = [
        Piece(piece.name, ((old[piece.name].text,),), 0, group=f"{piece.name} (alone)")
        for piece in closed
        if len(piece.paths) > 1
    ]
    for pieces in (closed, alone):
        give_up(client, pieces, source.make_request, found, "tables", on_progress, ends_only=True)
    found.num_done = len(found.entities)
    return found
