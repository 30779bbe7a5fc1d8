# SPDX-License-Identifier: Apache-2.0
"""After a change of the graph: which trees can hold it, and giving up just those.

KV is found by the tokens of its path. So what a changed graph says is never answered from KV of
what it said before, invalidated or not; invalidation gives back the room that nobody will use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from depcache.client.client import Client
from depcache.errors import PromptError, ServerError
from depcache.graph.base import GraphStore, check_text
from depcache.precompute.chunk_file import Chunk, find_predecessors
from depcache.precompute.chunk_source import ChunkSource
from depcache.precompute.pieces import Piece, fill_requests, make_pieces, paths_of
from depcache.precompute.progress_file import count_done, forget_entities
from depcache.precompute.report import MAX_KEPT_PROBLEMS
from depcache.precompute.settings import PrecomputeSettings
from depcache.prompt.paths import Path
from depcache.prompt.render import DEFAULT_CHUNK_SYSTEM
from depcache.prompt.template import get_template

REQUEST_CHARS = 10_000
"""Names of one request, in characters: some hundred entities. The server answers it in one go."""


@dataclass(slots=True)
class Invalidation:
    """What a change comes to, and what became of it.

    entities      whose trees can hold the change, sorted; of a schema these are its tables
    num_named     entities that were named
    num_gone      of those that were named, those that the graph does not have (any more)
    tokens        that were given up, by tier
    in_use        tokens that stay because a running request reads them: ask again
    num_done      entities that the server was asked about
    num_refused   entities whose names make no prompt; `problems` are sentences about the first
    num_forgotten entities of the state that are to be computed again; None without a state
    """

    entities: tuple[str, ...]
    num_named: int
    num_gone: int
    tokens: dict[str, int] = field(default_factory=dict)
    in_use: int = 0
    num_done: int = 0
    num_refused: int = 0
    problems: list[str] = field(default_factory=list)
    num_forgotten: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "affected": len(self.entities),
            "entities": list(self.entities),
            "named": self.num_named,
            "found": self.num_named - self.num_gone,
            "gone": self.num_gone,
            "tokens": self.tokens,
            "in_use": self.in_use,
            "refused": self.num_refused,
            "problems": self.problems,
            "forgotten": self.num_forgotten,
        }


def find_trees(
    store: GraphStore,
    entities: Iterable[str],
    num_hops: int,
    *,
    state: str | FilePath | None = None,
) -> Invalidation:
    """The trees that a change can be in. Changes nothing; arguments as for `invalidate`."""
    named = set(entities)
    for name in named:
        check_text(name, "the list of entities")
    affected = store.find_affected(named, num_hops)
    return Invalidation(
        entities=tuple(sorted(affected)),
        num_named=len(named),
        num_gone=len(named) - len(store.neighbours(named, 1)),
        num_forgotten=None if state is None else count_done(state, affected),
    )


def invalidate(
    store: GraphStore,
    client: Client,
    entities: Iterable[str],
    settings: PrecomputeSettings | None = None,
    *,
    state: str | FilePath | None = None,
    on_progress: Callable[[Invalidation], None] | None = None,
) -> Invalidation:
    """Have the server give up the trees that a change of the graph can be in, in every tier.

    store     the graph, before the change or after it: the trees are the same
    entities  both ends of every edge that is new or gone: `Change.entities`
    settings  those of the requests and of the precomputation. Only `num_hops`, `system` or
              `messages`, `template` and `fields` count: all position layouts are meant, and all
              tenants, unless the fields hold a `cache_salt`
    state     of a precomputation, in which these entities are to be computed again

    Raises PromptError for entities that are no names, ServerError when the server fails (what is
    done is done, and the same call goes on), ConfigError when the state is none.
    """
    settings = settings or PrecomputeSettings(pruner="none")
    found = find_trees(store, entities, settings.num_hops, state=state)
    if state is not None:
        # First, so that whatever happens next nothing counts as done that is not there.
        forget_entities(state, found.entities)
    template = get_template(settings.template)
    pieces = (
        piece
        for entity in found.entities
        for piece in make_pieces(entity, [(entity,)], template, REQUEST_CHARS)
    )
    give_up(client, pieces, settings.make_request, found, "entities", on_progress)
    return found


def give_up(
    client: Client,
    pieces: Iterable[Piece],
    make_request: Callable[[Sequence[Path]], dict[str, Any]],
    found: Invalidation,
    items: str,
    on_progress: Callable[[Invalidation], None] | None = None,
    *,
    ends_only: bool = False,
) -> None:
    """Send the pieces to the server, and note in `found` what it gives up.

    items      what the pieces are of, in the plural, for an error
    ends_only  as of `Client.invalidate`

    Raises ServerError when the server fails; what is done is done.
    """
    for batch in fill_requests(pieces, REQUEST_CHARS):
        try:
            _invalidate(client, make_request, batch, found, ends_only)
        except ServerError as error:
            stopped = ServerError(
                f"{error}; {found.num_done:,} of {len(found.entities):,} {items} are done, ask "
                "for all of them again"
            )
            stopped.status = error.status
            raise stopped from error
        if on_progress is not None:
            on_progress(found)


def invalidate_chunks(
    chunks: Sequence[Chunk],
    client: Client,
    ids: Iterable[str],
    *,
    system: str | None = DEFAULT_CHUNK_SYSTEM,
    fields: Mapping[str, Any] | None = None,
    state: str | FilePath | None = None,
) -> Invalidation:
    """Have the server give up these chunks, whatever they or others were computed behind.

    chunks  of the file, as they were when they were computed
    ids     of those that are given up, and with them every chunk that was computed behind one
    system, fields  as for `ChunkSource`; all tenants are meant, unless a `cache_salt` is among them
    state   of a precomputation, in which these chunks are to be computed again

    Raises as `invalidate`.
    """
    known = {chunk.id: chunk for chunk in chunks}
    wanted = list(dict.fromkeys(ids))
    named = [name for name in wanted if name in known]
    found = Invalidation(
        entities=tuple(named),
        num_named=len(wanted),
        num_gone=len(wanted) - len(named),
        num_forgotten=None if state is None else count_done(state, named),
    )
    if state is not None:
        forget_entities(state, named)
    is_numbered = all(chunk.number is not None for chunk in chunks if chunk.document is not None)
    before = find_predecessors(chunks) if is_numbered else {}
    source = ChunkSource(chunks, system=system, fields=fields)
    alone = [Piece(name, ((known[name].text,),), len(known[name].text)) for name in named]
    behind = [
        Piece(name, ((before[name].text, known[name].text),), len(known[name].text))
        for name in named
        if name in before
    ]
    # One after the other: in one prompt the path to a chunk behind another would be no path of it.
    for pieces in (behind, alone):
        for batch in fill_requests(pieces, REQUEST_CHARS):
            _invalidate(client, source.make_request, batch, found)
    found.num_done = len(named)
    return found


def _invalidate(
    client: Client,
    make_request: Callable[[Sequence[Path]], dict[str, Any]],
    batch: list[Piece],
    found: Invalidation,
    ends_only: bool = False,
) -> None:
    """One request; in halves where the server refuses a name in it."""
    try:
        answer = client.invalidate(make_request(paths_of(batch)), ends_only=ends_only)
    except PromptError as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            _invalidate(client, make_request, batch[:middle], found, ends_only)
            _invalidate(client, make_request, batch[middle:], found, ends_only)
            return
        found.num_refused += 1
        if len(found.problems) < MAX_KEPT_PROBLEMS:
            found.problems.append(f"{batch[0].name}: {error}")
        return
    found.num_done += len(batch)
    found.in_use += answer["in_use"]
    for tier, num_tokens in answer["tokens"].items():
        found.tokens[tier] = found.tokens.get(tier, 0) + num_tokens
