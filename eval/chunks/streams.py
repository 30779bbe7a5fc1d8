# SPDX-License-Identifier: Apache-2.0
"""Requests of chunks: traces of retrievers and contexts of data sets, in four orders.

A folder holds, for a set NAME, `retrieval_NAME_requests.jsonl` (ids of the chunks of each request)
with `retrieval_NAME_chunks.jsonl.gz` (their words), or `NAME.jsonl.gz` (questions with the text of
their chunks). Tokens are 1.3 for each word.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError

TRACES = ("musique", "2wikimultihopqa", "hotpotqa", "multihoprag", "popqa", "nq")
CONTEXTS = ("musique", "2wiki", "hotpotqa")
STREAMS = ("file order", "Zipf 0.7", "Zipf 1.0", "paraphrased")

Requests = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ChunkSet:
    """Requests of a set, each the ids of its chunks in order, and the tokens of each chunk.

    texts  of the chunks, where the set has them; a trace may have their numbers of words alone
    """

    name: str
    requests: Requests
    lens: Mapping[str, int]
    texts: Mapping[str, str]


def read_sets(folder: Path) -> list[ChunkSet]:
    """The sets that are there, in a fixed order; ConfigError when there is none."""
    names = [*TRACES, *(f"{name} contexts" for name in CONTEXTS)]
    sets = [found for name in names if (found := _read_set(folder, name)) is not None]
    if not sets:
        raise ConfigError(
            f"{folder.name!r} holds no requests of chunks: name a folder with "
            "retrieval_NAME_requests.jsonl or NAME.jsonl.gz"
        )
    return sets


def read_set(folder: Path, name: str) -> ChunkSet:
    """The set of that name, as `musique` or `musique contexts`. Raises ConfigError without it."""
    found = _read_set(folder, name)
    if found is None:
        names = ", ".join([*TRACES, *(f"{each} contexts" for each in CONTEXTS)])
        raise ConfigError(
            f"{folder.name!r} holds no requests of chunks {name!r}: name a folder that has one of "
            f"{names}"
        )
    return found


def _read_set(folder: Path, name: str) -> ChunkSet | None:
    folder = folder / "chunks" if (folder / "chunks").is_dir() else folder
    source, _, kind = name.partition(" ")
    if kind:
        file = folder / f"{source}.jsonl.gz"
        return _contexts(name, file) if source in CONTEXTS and file.is_file() else None
    requests = folder / f"retrieval_{name}_requests.jsonl"
    chunks = folder / f"retrieval_{name}_chunks.jsonl.gz"
    if name not in TRACES or not requests.is_file() or not chunks.is_file():
        return None
    found = {str(each["cid"]): each for each in _read(chunks)}
    asked = [tuple(map(str, each["chunks"])) for each in _read(requests)]
    lens = {cid: _count(each) for cid, each in found.items()}
    texts = {cid: each["text"] for cid, each in found.items() if "text" in each}
    return ChunkSet(name, asked, lens, texts)


def make_stream(requests: Requests, stream: str, number: int, seed: int = 0) -> Requests:
    """The requests of one of `STREAMS`.

    number  of requests; `file order` has at most those that are there

    A Zipf stream asks the same questions again. In `paraphrased` (Zipf 1.0) two neighbours of each
    request are swapped, and in half of them the last chunk is one of another question.
    """
    if stream == "file order":
        return list(requests)[:number]
    rng = random.Random(f"{seed} {stream}")
    order = rng.sample(range(len(requests)), len(requests))
    power = 0.7 if stream == "Zipf 0.7" else 1.0
    weights = [1 / (rank + 1) ** power for rank in range(len(order))]
    drawn = [requests[order[rank]] for rank in rng.choices(range(len(order)), weights, k=number)]
    return [_paraphrase(each, requests, rng) for each in drawn] if stream == STREAMS[-1] else drawn


def _paraphrase(
    request: tuple[str, ...], requests: Requests, rng: random.Random
) -> tuple[str, ...]:
    chunks = list(request)
    if len(chunks) > 1:
        at = rng.randrange(len(chunks) - 1)
        chunks[at], chunks[at + 1] = chunks[at + 1], chunks[at]
    if rng.random() < 0.5:
        chunks[-1] = rng.choice(rng.choice(requests))
    return tuple(dict.fromkeys(chunks))


def _contexts(name: str, file: Path) -> ChunkSet:
    lens: dict[str, int] = {}
    texts: dict[str, str] = {}
    requests: Requests = []
    for question in _read(file):
        ids: list[str] = []
        for chunk in question["chunks"]:
            text = f"{chunk['title']} {chunk['text']}"
            ids.append(blake2b(text.encode(), digest_size=6).hexdigest())
            lens[ids[-1]] = _tokens(len(text.split()))
            texts[ids[-1]] = f"{chunk['title']}\n{chunk['text']}"
        requests.append(tuple(ids))
    return ChunkSet(name, requests, lens, texts)


def _count(chunk: Mapping[str, Any]) -> int:
    return _tokens(chunk["words"] if "words" in chunk else len(chunk["text"].split()))


def _tokens(words: int) -> int:
    return max(1, round(1.3 * words))


def _read(file: Path) -> Iterator[dict[str, Any]]:
    data = file.read_bytes()
    text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    yield from map(json.loads, text.splitlines())


def tokens_of(requests: Sequence[Sequence[str]], lens: Mapping[str, int], fixed: int) -> int:
    """Tokens of all prompts; `fixed` is of system and task together."""
    return sum(fixed + sum(lens[chunk] for chunk in request) for request in requests)
