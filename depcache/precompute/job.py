# SPDX-License-Identifier: Apache-2.0
"""Send the paths of a source to a running server, a few requests at a time, and keep account.

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
from depcache.precompute.disk import persist
from depcache.precompute.estimate import Estimate, Sample, make_estimate, spread
from depcache.precompute.pieces import Piece, fill_requests, paths_of
from depcache.precompute.progress_file import ProgressFile
from depcache.precompute.report import PrecomputeReport, Progress
from depcache.precompute.server import ServerFacts, look_at
from depcache.precompute.source import Source
from depcache.prompt.paths import Path

REQUEST_TOKENS = 4096
"""Most tokens of one request. Larger ones gain nothing: the server computes in chunks."""

NUM_WORKERS = 4
NUM_SAMPLED = 32
"""Items that an estimate looks at."""

NUM_CHECKED = 16
"""Items of the state for which the server is asked whether it still holds them."""

RETRY_DELAYS_S = (0.5, 1.0, 2.0)
MAX_FAILED_IN_A_ROW = 8
"""Answers with HTTP 5xx, to requests of one item each, after which it is not their fault."""

CHARS_PER_TOKEN = 3.0
"""What holds until a sample says better."""

FILL = 0.85
"""How full requests are made: their size is known in characters only."""


@dataclass(frozen=True, slots=True)
class PrecomputePlan:
    """What `Precomputer.run` will do.

    names            all items that are wanted, in their order
    pending          those that are not done
    estimate         of all of them
    chars_per_token  of their trees
    notes            sentences for a person: why a former state does not count, and the like
    """

    names: tuple[str, ...]
    pending: tuple[str, ...]
    estimate: Estimate
    chars_per_token: float
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Open:
    """An item whose pieces are not all back. `is_failed`: one of them was left out."""

    paths: list[Path]
    num_pieces: int
    is_failed: bool = False


class Precomputer:
    """Brings what a source has into the cache of a server.

    source          a `GraphSource`, a `ChunkSource` or a `TableSource`
    state           file of what is done; made if it is not there, added to otherwise. None: none
    request_tokens  most tokens of one request; less where the server takes less
    retry_delays_s  waits before each new try when the server does not answer, or with HTTP 5xx

    Asks the server what it is; raises ServerError when it is not there or runs without DepCache,
    ConfigError when the state cannot be used.
    """

    def __init__(
        self,
        source: Source,
        client: Client,
        *,
        state: str | FilePath | None = None,
        request_tokens: int = REQUEST_TOKENS,
        retry_delays_s: Sequence[float] | None = None,
    ) -> None:
        if request_tokens < 1:
            raise ConfigError(f"request_tokens is {shorten(request_tokens)}: choose at least 1")
        self._source = source
        self._client = client
        self._retry_delays_s = RETRY_DELAYS_S if retry_delays_s is None else retry_delays_s
        self._server: ServerFacts = look_at(client)
        room = self._server.max_prompt_tokens
        self._max_tokens = request_tokens if room is None else min(request_tokens, room)
        made_for = {**source.describe(), **self._server.made_for}
        self._state = ProgressFile(state, made_for, source.stamp())
        self._lock = RLock()
        self._stop = Event()
        self._system_len = 0
        self._report = PrecomputeReport(source.words.items)
        self._open: dict[str, _Open] = {}
        self._failed_in_a_row = 0

    # --- plan ---

    def plan(self, names: Sequence[str] | None = None) -> PrecomputePlan:
        """Look at what is done and at a sample of the items; changes nothing.

        names  the items wanted, in this order; None for all of the source

        Raises PromptError when the server refuses the whole sample.
        """
        wanted = tuple(dict.fromkeys(self._source.names() if names is None else names))
        refusals: list[PromptError] = []
        sample = self._look_at(self._find_all(spread(wanted, NUM_SAMPLED)), refusals)
        if refusals and not sample.num_tokens:
            raise refusals[-1]
        notes = self._check_done(wanted)
        done = {name for name in wanted if self._state.is_done(name)}
        words, stats = self._source.words, self._server.stats
        estimate = make_estimate(words, len(wanted), len(done), sample, stats)
        ratio = sample.num_chars / sample.num_tokens if sample.num_tokens else CHARS_PER_TOKEN
        return PrecomputePlan(
            names=wanted,
            pending=tuple(name for name in wanted if name not in done),
            estimate=estimate,
            chars_per_token=ratio,
            notes=tuple(notes),
        )

    def _check_done(self, wanted: Sequence[str]) -> list[str]:
        """Ask whether the server still holds what the state says; forget the state if not.

        Returns sentences for a person.
        """
        notes: list[str] = []
        checked = spread([name for name in wanted if name in self._state], NUM_CHECKED)
        known = {
            name: paths
            for name, paths in self._find_all(checked).items()
            if self._state.is_done(name) or self._state.has_paths(name, paths)
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
            words = self._source.words
            notes.append(
                f"{words.choice} has changed: {words.items} that are still the same are not "
                "computed again"
            )
        return notes

    def _look_at(self, trees: dict[str, list[Path]], refusals: list[PromptError]) -> Sample:
        """Count the tokens of some items by the server's own tokenizer, computing nothing."""
        max_chars = self._max_tokens * CHARS_PER_TOKEN
        pieces: list[Piece] = []
        for name, paths in trees.items():
            pieces += self._source.cut(name, paths, max_chars)
        sample = Sample(num_items=len(trees))
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

    def _explain(self, batch: Sequence[Piece]) -> Sample:
        answer = self._client.explain(self._source.make_request(paths_of(batch)))
        table = answer.get("table")
        if table:
            self._system_len = table[0]["start"]
        context_len = answer["context_tokens"] - self._system_len
        # What a request would bring from disk is no less held than what is in memory.
        missed = answer["missed"] - answer.get("on_disk", 0)
        return Sample(
            num_chars=sum(piece.num_chars for piece in batch),
            num_tokens=context_len,
            num_cached=max(0, min(context_len, context_len - missed)),
        )

    def _find_all(self, names: Sequence[str]) -> dict[str, list[Path]]:
        """The paths of each; none of those that the source does not have."""
        return {name: self._source.find(name) or [] for name in names}

    # --- run ---

    def run(
        self,
        plan: PrecomputePlan,
        *,
        num_workers: int = NUM_WORKERS,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> PrecomputeReport:
        """Compute what is pending, `num_workers` requests at a time; then have it written to disk.

        Single items that cannot be computed are counted and named in the report. Raises
        ServerError when the server stays away, and whatever ends the loop (KeyboardInterrupt),
        after the requests under way have been written down.
        """
        if num_workers < 1:
            raise ConfigError(f"num_workers is {shorten(num_workers)}: choose at least 1")
        started = time.perf_counter()
        self._report = report = PrecomputeReport(self._source.words.items, len(plan.names))
        report.num_resumed = len(plan.names) - len(plan.pending)
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

    def _make_pieces(self, names: Sequence[str], max_chars: float) -> Iterator[Piece]:
        """Pieces of all items that have to be computed; the others are accounted for."""
        words = self._source.words
        for name in names:
            paths = self._source.find(name)
            pieces: list[Piece] = []
            with self._lock:
                if paths is None:
                    self._report.fail(name, "unknown", words.unknown)
                elif self._state.has_paths(name, paths):
                    self._state.write(name, paths)
                    self._report.num_unchanged += 1
                elif not paths:
                    self._report.fail(name, "no paths", words.empty)
                else:
                    pieces = self._source.cut(name, paths, max_chars)
                    self._open[name] = _Open(paths, len(pieces))
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
            report.num_missed += reply.missed + reply.settled
            report.num_cached += max(0, reply.reused - self._system_len - reply.settled)
            for piece in batch:
                self._finish(piece)

    def _send(self, batch: Sequence[Piece]) -> ReuseReport:
        body = self._source.make_request(paths_of(batch))
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
            parts = self._source.split(piece) if is_refused and len(piece.paths) > 1 else []
            if len(parts) > 1:
                self._open[piece.name].num_pieces += len(parts) - 1
                return [[part] for part in parts]
            if not is_refused:
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW:
                    raise error
            item = self._open[piece.name]
            if not item.is_failed:
                item.is_failed = True
                reason = "refused" if is_refused else "failed"
                self._report.fail(piece.name, reason, str(error))
            self._finish(piece)
        return []

    def _finish(self, piece: Piece) -> None:
        """Note a piece; with the last one its item is done, unless one of them failed."""
        item = self._open[piece.name]
        item.num_pieces -= 1
        if item.num_pieces:
            return
        del self._open[piece.name]
        if not item.is_failed:
            self._state.write(piece.name, item.paths)
            self._report.num_computed += 1

    def _stopped(self, error: ServerError, report: PrecomputeReport) -> ServerError:
        stopped = ServerError(
            f"{error}; {report.num_done:,} of {report.num_wanted:,} {report.items} are done, the "
            "same command again goes on there"
        )
        stopped.status = error.status
        return stopped


def _await_one(running: set[Future[None]]) -> set[Future[None]]:
    """Wait for one at least, and give those that still run; raises what one of them raised."""
    finished, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        future.result()
    return rest
