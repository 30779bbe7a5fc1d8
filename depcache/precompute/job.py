# SPDX-License-Identifier: Apache-2.0
"""Send the trees of entities to a running server, a few requests at a time, and keep account.

A request asks for one token, the least that SGLang's chat route takes: the prefill gives it, so
that only the context and a task of a few tokens are computed, and nothing is decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path as FilePath
from threading import Event, RLock

from depcache.client.client import Client
from depcache.client.reply import ReuseReport
from depcache.errors import ConfigError, PromptError, ServerError, shorten
from depcache.graph.base import GraphStore
from depcache.precompute.disk import persist
from depcache.precompute.estimate import EntitySample, Estimate, make_estimate, spread
from depcache.precompute.pieces import Piece, fill_requests, make_pieces, paths_of, split_piece
from depcache.precompute.progress_file import ProgressFile
from depcache.precompute.report import PrecomputeReport, Progress
from depcache.precompute.server import ServerFacts, look_at
from depcache.precompute.settings import PrecomputeSettings
from depcache.prompt.paths import Path
from depcache.prompt.template import get_template

REQUEST_TOKENS = 4096
"""Most tokens of one request. Larger ones gain nothing: the server computes in chunks."""

NUM_WORKERS = 4
NUM_SAMPLED = 32
"""Entities that an estimate looks at."""

NUM_CHECKED = 16
"""Entities of the state for which the server is asked whether it still holds them."""

RETRY_DELAYS_S = (0.5, 1.0, 2.0)
MAX_FAILED_IN_A_ROW = 8
"""Answers with HTTP 5xx, to requests of one entity each, after which it is not their fault."""

CHARS_PER_TOKEN = 3.0
"""What holds until a sample says better."""

FILL = 0.85
"""How full requests are made: their size is known in characters only."""


@dataclass(frozen=True, slots=True)
class PrecomputePlan:
    """What `Precomputer.run` will do.

    entities         all that are wanted, in their order
    pending          those that are not done
    estimate         of all of them
    chars_per_token  of their trees
    notes            sentences for a person: why a former state does not count, and the like
    """

    entities: tuple[str, ...]
    pending: tuple[str, ...]
    estimate: Estimate
    chars_per_token: float
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Open:
    """An entity whose pieces are not all back. `is_failed`: one of them was left out."""

    paths: list[Path]
    num_pieces: int
    is_failed: bool = False


class Precomputer:
    """Brings trees of a graph into the cache of a server.

    state           file of what is done; made if it is not there, added to otherwise. None: none
    request_tokens  most tokens of one request; less where the server takes less
    retry_delays_s  waits before each new try when the server does not answer, or with HTTP 5xx

    Asks the server what it is; raises ServerError when it is not there or runs without DepCache,
    ConfigError when the state cannot be used.
    """

    def __init__(
        self,
        store: GraphStore,
        client: Client,
        settings: PrecomputeSettings | None = None,
        *,
        state: str | FilePath | None = None,
        request_tokens: int = REQUEST_TOKENS,
        retry_delays_s: Sequence[float] | None = None,
    ) -> None:
        if request_tokens < 1:
            raise ConfigError(f"request_tokens is {shorten(request_tokens)}: choose at least 1")
        self.settings = settings or PrecomputeSettings()
        self._store = store
        self._client = client
        self._template = get_template(self.settings.template)
        self._retry_delays_s = RETRY_DELAYS_S if retry_delays_s is None else retry_delays_s
        self._server: ServerFacts = look_at(client)
        room = self._server.max_prompt_tokens
        self._max_tokens = request_tokens if room is None else min(request_tokens, room)
        made_for = {**self.settings.describe(), **self._server.made_for}
        self._state = ProgressFile(state, made_for, self.settings.choice_of(store))
        self._lock = RLock()
        self._stop = Event()
        self._system_len = 0
        self._report = PrecomputeReport()
        self._open: dict[str, _Open] = {}
        self._failed_in_a_row = 0

    # --- plan ---

    def plan(self, entities: Sequence[str]) -> PrecomputePlan:
        """Look at what is done and at a sample of the entities; changes nothing.

        Raises PromptError when the server refuses the whole sample.
        """
        wanted = tuple(dict.fromkeys(entities))
        refusals: list[PromptError] = []
        sample = self._look_at(self._find_all(spread(wanted, NUM_SAMPLED)), refusals)
        if refusals and not sample.num_tokens:
            raise refusals[-1]
        notes = self._check_done(wanted)
        done = {entity for entity in wanted if self._state.is_done(entity)}
        estimate = make_estimate(len(wanted), len(done), sample, self._server.stats)
        ratio = sample.num_chars / sample.num_tokens if sample.num_tokens else CHARS_PER_TOKEN
        return PrecomputePlan(
            entities=wanted,
            pending=tuple(entity for entity in wanted if entity not in done),
            estimate=estimate,
            chars_per_token=ratio,
            notes=tuple(notes),
        )

    def _check_done(self, wanted: Sequence[str]) -> list[str]:
        """Ask whether the server still holds what the state says; forget the state if not.

        Returns sentences for a person.
        """
        notes: list[str] = []
        checked = spread([entity for entity in wanted if entity in self._state], NUM_CHECKED)
        known = {
            entity: paths
            for entity, paths in self._find_all(checked).items()
            if self._state.is_done(entity) or self._state.has_paths(entity, paths)
        }
        held = self._look_at(known, [])
        share = held.num_cached / held.num_tokens if held.num_tokens else 1.0
        if share < 0.5:
            self._state.forget(
                f"the server holds {share:.0%} of what was done: it was restarted or flushed, or "
                "has evicted it"
            )
        elif share < 1.0:
            notes.append(
                f"the server holds {share:.0%} of what was done, and has evicted the rest: remove "
                "the state to compute it again"
            )
        if self._state.why_anew:
            notes.append(f"starting anew: {self._state.why_anew}")
        elif self._state.has_others:
            notes.append(
                "the graph or the choice of paths has changed: entities whose paths are still the "
                "same are not computed again"
            )
        return notes

    def _look_at(self, trees: dict[str, list[Path]], refusals: list[PromptError]) -> EntitySample:
        """Count the tokens of some entities by the server's own tokenizer, computing nothing."""
        max_chars = self._max_tokens * CHARS_PER_TOKEN
        pieces: list[Piece] = []
        for entity, paths in trees.items():
            pieces += make_pieces(entity, paths, self._template, max_chars)
        sample = EntitySample(num_entities=len(trees))
        for batch in fill_requests(pieces, max_chars):
            try:
                sample += self._explain(batch)
            except PromptError as error:
                refusals.append(error)
                for piece in batch if len(batch) > 1 else ():
                    try:
                        sample += self._explain([piece])
                    except PromptError as one:
                        refusals.append(one)
        return sample

    def _explain(self, batch: Sequence[Piece]) -> EntitySample:
        answer = self._client.explain(self.settings.make_request(paths_of(batch)))
        table = answer.get("table")
        if table:
            self._system_len = table[0]["start"]
        context_len = answer["context_tokens"] - self._system_len
        # What a request would bring from disk is no less held than what is in memory.
        missed = answer["missed"] - answer.get("on_disk", 0)
        return EntitySample(
            num_chars=sum(piece.num_chars for piece in batch),
            num_tokens=context_len,
            num_cached=max(0, min(context_len, context_len - missed)),
        )

    def _find_all(self, entities: Sequence[str]) -> dict[str, list[Path]]:
        """The paths of each; none of those that the graph does not have."""
        return {entity: self._find(entity) or [] for entity in entities}

    def _find(self, entity: str) -> list[Path] | None:
        try:
            return self.settings.find_paths(self._store, entity)
        except PromptError:
            return None  # no name at all, and so no entity

    # --- run ---

    def run(
        self,
        plan: PrecomputePlan,
        *,
        num_workers: int = NUM_WORKERS,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> PrecomputeReport:
        """Compute what is pending, `num_workers` requests at a time; then have it written to disk.

        Single entities that cannot be computed are counted and named in the report. Raises
        ServerError when the server stays away, and whatever ends the loop (KeyboardInterrupt),
        after the requests under way have been written down.
        """
        if num_workers < 1:
            raise ConfigError(f"num_workers is {shorten(num_workers)}: choose at least 1")
        started = time.perf_counter()
        self._report = report = PrecomputeReport(num_entities=len(plan.entities))
        report.num_resumed = len(plan.entities) - len(plan.pending)
        self._open, self._failed_in_a_row = {}, 0
        self._stop.clear()
        self._state.begin()
        max_chars = max(1.0, (self._max_tokens - self._system_len) * FILL * plan.chars_per_token)

        def tell() -> None:
            if on_progress is not None:
                with self._lock:
                    progress = report.progress(started)
                on_progress(progress)

        tell()
        batches = fill_requests(self._make_pieces(plan.pending, max_chars), max_chars)
        with ThreadPoolExecutor(num_workers) as pool:
            running: set[Future[None]] = set()
            try:
                for batch in batches:
                    running.add(pool.submit(self._compute, batch))
                    while len(running) >= num_workers:
                        running = _await_one(running)
                        tell()
                while running:
                    running = _await_one(running)
                    tell()
            except ServerError as error:
                self._stop.set()
                wait(running)
                raise self._stopped(error, report) from error
            except BaseException:
                self._stop.set()
                raise
        try:
            report.num_persisted = persist(self._client, self._stop)
        except ServerError as error:
            if error.status is None:
                raise self._stopped(error, report) from error
            report.problems.append(f"the disk tier was not asked to write: {error}")
        report.seconds = time.perf_counter() - started
        if plan.estimate.bytes_per_token is not None:
            report.num_bytes = report.num_missed * plan.estimate.bytes_per_token
        tell()
        return report

    @property
    def report(self) -> PrecomputeReport:
        """The report of the run that is under way, or of the last one."""
        return self._report

    def _make_pieces(self, entities: Sequence[str], max_chars: float) -> Iterator[Piece]:
        """Pieces of all entities that have to be computed; the others are accounted for."""
        for entity in entities:
            paths = self._find(entity)
            pieces: list[Piece] = []
            with self._lock:
                if paths is None:
                    self._report.fail(entity, "unknown", "the graph has no such entity")
                elif self._state.has_paths(entity, paths):
                    self._state.write(entity, paths)
                    self._report.num_unchanged += 1
                elif not paths:
                    self._report.fail(entity, "no paths", "there is no path around it")
                else:
                    pieces = make_pieces(entity, paths, self._template, max_chars)
                    self._open[entity] = _Open(paths, len(pieces))
            yield from pieces

    def _compute(self, batch: Sequence[Piece]) -> None:
        """Compute a request, in parts where the server refuses it as a whole."""
        if self._stop.is_set():
            return
        try:
            reply = self._send(batch)
        except (PromptError, ServerError) as error:
            for part in self._take_apart(batch, error):
                self._compute(part)
            return
        with self._lock:
            self._failed_in_a_row = 0
            report = self._report
            report.num_requests += 1
            report.num_missed += reply.missed
            report.num_cached += max(0, reply.reused - self._system_len)
            for piece in batch:
                self._finish(piece)

    def _send(self, batch: Sequence[Piece]) -> ReuseReport:
        body = self.settings.make_request(paths_of(batch))
        delays = iter(self._retry_delays_s)
        while True:
            try:
                reply = self._client.chat(**{**body, "max_tokens": 1})
            except ServerError:
                delay = next(delays, None)
                if delay is None or self._stop.wait(delay):
                    raise
                continue
            if reply.depcache is None:
                raise ServerError(
                    "the server answers without DepCache: start it with `depcache serve` and "
                    "without --stock"
                )
            return reply.depcache

    def _take_apart(
        self, batch: Sequence[Piece], error: PromptError | ServerError
    ) -> list[list[Piece]]:
        """Smaller requests instead of one that failed; none where it was a single path's fault.

        Raises `error` when it is none of a request, but the server is gone or ill.
        """
        is_refused = isinstance(error, PromptError)
        if isinstance(error, ServerError):
            is_answer = error.status is not None and error.status >= 500
            if not (is_answer and self._client.is_ready()):
                raise error
        if len(batch) > 1:
            middle = len(batch) // 2
            return [list(batch[:middle]), list(batch[middle:])]
        [piece] = batch
        with self._lock:
            if is_refused and len(piece.paths) > 1:
                parts = split_piece(piece, self._template)
                self._open[piece.entity].num_pieces += len(parts) - 1
                return [[part] for part in parts]
            if not is_refused:
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW:
                    raise error
            entity = self._open[piece.entity]
            if not entity.is_failed:
                entity.is_failed = True
                reason = "refused" if is_refused else "failed"
                self._report.fail(piece.entity, reason, str(error))
            self._finish(piece)
        return []

    def _finish(self, piece: Piece) -> None:
        """Note a piece; with the last one its entity is done, unless one of them failed."""
        entity = self._open[piece.entity]
        entity.num_pieces -= 1
        if entity.num_pieces:
            return
        del self._open[piece.entity]
        if not entity.is_failed:
            self._state.write(piece.entity, entity.paths)
            self._report.num_computed += 1

    def _stopped(self, error: ServerError, report: PrecomputeReport) -> ServerError:
        stopped = ServerError(
            f"{error}; {report.num_done:,} of {report.num_entities:,} entities are done, the same "
            "command again goes on there"
        )
        stopped.status = error.status
        return stopped


def _await_one(running: set[Future[None]]) -> set[Future[None]]:
    """Wait for one at least, and give those that still run; raises what one of them raised."""
    finished, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        future.result()
    return rest
