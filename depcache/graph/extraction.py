# SPDX-License-Identifier: Apache-2.0
"""Build a graph from documents: chunks, a language model that reads them, a state to go on from.

    extractor = OpenAIExtractor("http://127.0.0.1:30000")  # of depcache.graph.openai_extractor
    chunks = make_chunks([("notes.txt", text)])
    store.upsert(extract_all(chunks, extractor, state="notes.state.jsonl").triples)

512 tokens a chunk and one call for each, as in the DepCache paper (section 6.1). What is done
stands in the state file, a line per chunk: a run that was broken off goes on where it stopped. The
next run asks again about chunks whose answers could not be used, and about no others.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError, shorten
from depcache.graph.base import Triple, check_text
from depcache.state_file import StateFile

CHUNK_TOKENS = 512

BAD_OUTPUT_TRIES = 2
"""Calls for one chunk whose answers cannot be used, before it is left out."""

MAX_KEPT_PROBLEMS = 20

CountTokens = Callable[[str], int]


class BadOutputError(ValueError):
    """A model's answer is no list of triples."""


class CutOffError(BadOutputError):
    """A model's answer ended at the limit of its tokens; asked again it would end there again."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document. `key` is a digest of its text: equal texts are read once."""

    document: str
    text: str

    @property
    def key(self) -> str:
        return blake2b(self.text.encode("utf-8", "replace"), digest_size=16).hexdigest()


@dataclass(slots=True)
class Extracted:
    """What a run found, in the order of the chunks.

    triples      distinct, the first mention first
    num_chunks   chunks in all; of those num_resumed were read by an earlier run
    num_retried  chunks that an earlier run left out, and this one asked about again
    num_bad      chunks left out because the model's answers could not be used
    num_dropped  single triples left out because a name was blank or no text
    problems     reasons of the first of both
    """

    triples: list[Triple] = field(default_factory=list)
    num_chunks: int = 0
    num_resumed: int = 0
    num_retried: int = 0
    num_bad: int = 0
    num_dropped: int = 0
    problems: list[str] = field(default_factory=list)


class Extractor(ABC):
    """Finds the triples of a text. Must be safe to call from several threads."""

    @abstractmethod
    def extract(self, text: str) -> list[Sequence[Any]]:
        """Triples, perhaps malformed. BadOutputError leaves the chunk out; other errors stop."""


def make_chunks(
    documents: Iterable[tuple[str, str]],
    *,
    max_tokens: int = CHUNK_TOKENS,
    count_tokens: CountTokens | None = None,
) -> Iterator[Chunk]:
    """Cut documents, given as (name, text), into pieces of at most `max_tokens`.

    count_tokens  of a sentence; without it, its words and signs are counted. A sentence that
                  alone is too long is cut between words

    Pieces end where a sentence does; blank ones are left out; joined they are the text.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {shorten(max_tokens)}: choose at least 1")
    count = count_tokens or _count_words
    for name, text in documents:
        piece, num_tokens = "", 0
        for sentence in _split(text, max_tokens, count):
            size = count(sentence)
            if piece and num_tokens + size > max_tokens:
                if piece.strip():
                    yield Chunk(name, piece)
                piece, num_tokens = "", 0
            piece += sentence
            num_tokens += size
        if piece.strip():
            yield Chunk(name, piece)


def extract_all(
    chunks: Iterable[Chunk],
    extractor: Extractor,
    *,
    state: str | Path | None = None,
    num_workers: int = 4,
    on_progress: Callable[[int], None] | None = None,
) -> Extracted:
    """The triples of all chunks; `num_workers` are read at a time.

    state        file of what is done; made if it is not there, added to otherwise. None: none
    on_progress  told the number of chunks that are done

    Raises what the extractor raises, after the chunks under way have been written down.
    """
    if num_workers < 1:
        raise ConfigError(f"num_workers is {shorten(num_workers)}: choose at least 1")
    wanted = list(chunks)
    done = _State(None if state is None else Path(state))
    bad = done.forget_bad()
    missing = {chunk.key: chunk for chunk in wanted if chunk.key not in done.rows}
    result = Extracted(num_chunks=len(wanted))
    result.num_resumed = sum(chunk.key in done.rows for chunk in wanted)
    result.num_retried = len(bad & missing.keys())

    def run(chunk: Chunk) -> None:
        done.write(chunk, _extract_one(chunk, extractor))

    with ThreadPoolExecutor(num_workers) as pool:
        rest = iter(missing.values())
        running: set[Future[None]] = {
            pool.submit(run, chunk) for chunk in islice(rest, num_workers)
        }
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            running |= {pool.submit(run, chunk) for chunk in islice(rest, len(finished))}
            if on_progress is not None:
                on_progress(sum(chunk.key in done.rows for chunk in wanted))
    _collect(wanted, done.rows, result)
    return result


def _extract_one(chunk: Chunk, extractor: Extractor) -> dict[str, Any]:
    problem = ""
    for _ in range(BAD_OUTPUT_TRIES):
        try:
            return {"triples": [list(triple) for triple in extractor.extract(chunk.text)]}
        except BadOutputError as error:
            problem = str(error)
            if isinstance(error, CutOffError):
                break
    return {"problem": problem}


def _collect(chunks: Sequence[Chunk], rows: dict[str, Any], result: Extracted) -> None:
    """Add up what the state says of the chunks."""
    found: dict[Triple, None] = {}
    for chunk in {chunk.key: chunk for chunk in chunks}.values():
        row = rows[chunk.key]
        problems: list[str] = []
        if "problem" in row:
            result.num_bad += 1
            problems.append(row["problem"])
        for item in row.get("triples", ()):
            try:
                head, relation, tail = item
                for element in item:
                    check_text(element, "a triple")
                found[head.strip(), relation.strip(), tail.strip()] = None
            except (TypeError, ValueError) as error:
                result.num_dropped += 1
                problems.append(str(error))
        for problem in problems:
            if len(result.problems) < MAX_KEPT_PROBLEMS:
                result.problems.append(f"{chunk.document}: {problem}")
    result.triples = list(found)


class _State:
    """A line of JSON per chunk that was read: its key, and its triples or its problem.

    Of several lines about a chunk the last one counts.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else StateFile(path)
        rows = [] if self._file is None else self._file.read()
        self.rows: dict[str, Any] = {row["chunk"]: row for row in rows if "chunk" in row}

    def forget_bad(self) -> set[str]:
        """Take the chunks with a problem as not read; returns their keys."""
        bad = {key for key, row in self.rows.items() if "problem" in row}
        for key in bad:
            del self.rows[key]
        return bad

    def write(self, chunk: Chunk, row: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.append({"chunk": chunk.key, "document": chunk.document, **row})
        self.rows[chunk.key] = row


def _split(text: str, max_tokens: int, count: CountTokens) -> Iterator[str]:
    """Sentences, or runs of words where a sentence is too long; joined they are the text."""
    for sentence in re.findall(r".+?(?:[.!?。！？]+\s+|\n+|$)|\s+", text, flags=re.DOTALL):
        if count(sentence) <= max_tokens:
            yield sentence
            continue
        piece = ""
        for word in re.findall(r"\s*\S+\s*?(?=\s|$)|\s+", sentence):
            if piece and count(piece + word) > max_tokens:
                yield piece
                piece = ""
            piece += word
        yield piece


def _count_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))
