# SPDX-License-Identifier: Apache-2.0
"""The workloads of the simulator as token trees, made once and kept in a file.

Three families:

    uniform, zipfian, temporal   the patterns of `eval.workloads` over a graph: 10 entities a
                                 request, up to 30 two-hop paths each, drawn from a pool of
                                 distinct entities
    chunks_<set>                 retrieval traces: the chunks that a real retriever returned,
                                 each a tree of its own
    whole:bird, lake:sql:6, ...  tables of text-to-SQL prompts (`eval.policy.table_streams`)

Tokens are those of a byte-level BPE trained on the texts themselves: no download, always the
same; or those of a model that is named. The `zipfian` and `temporal` parameters are the defaults
of `eval.workloads.patterns`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depcache.graph.base import GraphStore
from depcache.graph.networkx_store import NetworkXStore
from depcache.prompt.nodes import TreeNode
from depcache.prompt.render import DEFAULT_SYSTEM
from depcache.prompt.tokenization import PromptTokenizer
from eval.policy.prepared import Prepared, write_prepared
from eval.policy.table_streams import files_of, is_table_stream, prepare_tables
from eval.sets import SetError
from eval.tokenizer import VOCAB_SIZE, read_tokenizer, train_tokenizer
from eval.workloads.paths import EntityPaths, draw_pool
from eval.workloads.patterns import KINDS, make_workload

RECIPE = 2
"""Counts up when workloads are made in another way, so that old files are not used."""

CHUNKS = "chunks_"
TOKENS_PER_WORD = 4 / 3
"""For a set that gives the words of its chunks only, about what a BPE makes of English."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One workload; equal specs over equal data are equal workloads.

    kind          "uniform", "zipfian", "temporal" or "chunks_<set>"
    pool          distinct entities that requests are drawn from; 0 for chunks
    num_requests  requests; a trace is cut, never repeated
    seed          of the pool and of the requests; 0 for chunks
    """

    kind: str
    pool: int
    num_requests: int
    seed: int = 0

    @property
    def is_trace(self) -> bool:
        return self.kind.startswith(CHUNKS)


class Source:
    """Where workloads come from; what several of them need is made once.

    graph   a file of triples (TSV, .gz allowed)
    chunks  folder with `retrieval_<set>_requests.jsonl` and `_chunks.jsonl.gz`
    cache   folder for the prepared workloads
    tables  folder of the schemas, see `eval.tables.sets`
    model   the folder of a model whose tokenizer is used; None trains one on the texts
    """

    def __init__(
        self,
        graph: Path,
        chunks: Path | None,
        cache: Path,
        tables: Path | None = None,
        model: Path | None = None,
    ) -> None:
        self._tables = tables
        self._tokenizer_file = None if model is None else model / "tokenizer.json"
        self._graph = graph
        self._chunks = chunks
        self._cache = cache
        self._tokens: _EntityTokens | None = None

    def prepare(self, spec: PolicySpec) -> Path:
        """The file of a workload, made if it is not there. SetError when the data is missing."""
        is_tables = is_table_stream(spec.kind)
        if is_tables and self._tables is None:
            raise SetError(f"{spec.kind!r} needs the folder of the schemas")
        if self._tables is not None and is_tables:
            files = files_of(self._tables, spec.kind)
        else:
            files = self._chunk_files(spec) if spec.is_trace else [self._graph]
        read = files if self._tokenizer_file is None else [*files, self._tokenizer_file]
        for file in read:
            if not file.is_file():
                raise SetError(f"there is no file {str(file)!r}: {spec.kind!r} needs it")
        digest = hashlib.sha256(json.dumps([RECIPE, asdict(spec)]).encode())
        for file in read:
            digest.update(file.read_bytes())
        path = self._cache / f"{spec.kind}-{digest.hexdigest()[:16]}.npz"
        if not path.exists():
            if self._tables is not None and is_tables:
                prepared = prepare_tables(
                    self._tables, spec.kind, spec.num_requests, spec.seed, self._make_tokenizer
                )
            else:
                prepared = self._trace(spec, *files) if spec.is_trace else self._synthetic(spec)
            write_prepared(path, prepared)
        return path

    def _make_tokenizer(self, texts: Iterable[str]) -> PromptTokenizer:
        if self._tokenizer_file is None:
            return PromptTokenizer(train_tokenizer(texts))
        return read_tokenizer(self._tokenizer_file)

    def _synthetic(self, spec: PolicySpec) -> Prepared:
        if spec.kind not in KINDS:
            raise SetError(f"{spec.kind!r} is no workload: use {', '.join(KINDS)} or {CHUNKS}...")
        if self._tokens is None:
            self._tokens = _EntityTokens(NetworkXStore.from_file(self._graph), self._make_tokenizer)
        tokens = self._tokens
        num_names = len(tokens.store.names())
        if spec.pool > num_names:
            raise SetError(f"the pool is {spec.pool}, but the graph has {num_names} entities")
        pool = draw_pool(tokens.store, spec.pool, spec.seed)
        requests = make_workload(spec.kind, pool, spec.num_requests, seed=spec.seed)
        return Prepared.make(
            tokens.tokenizer.encode_text(DEFAULT_SYSTEM, first=True),
            (
                [sequence for entity in entities for sequence in tokens.of(entity)]
                for entities in requests
            ),
        )

    def _chunk_files(self, spec: PolicySpec) -> list[Path]:
        if self._chunks is None:
            raise SetError(f"{spec.kind!r} needs the folder of the retrieval traces")
        name = spec.kind.removeprefix(CHUNKS)
        return [
            self._chunks / f"retrieval_{name}_requests.jsonl",
            self._chunks / f"retrieval_{name}_chunks.jsonl.gz",
        ]

    def _trace(self, spec: PolicySpec, requests: Path, chunks: Path) -> Prepared:
        rows = [json.loads(line) for line in requests.open(encoding="utf-8")]
        with gzip.open(chunks, "rt", encoding="utf-8") as lines:
            found = {row["cid"]: row for row in map(json.loads, lines)}
        texts = {cid: row["text"] for cid, row in found.items() if "text" in row}
        tokenizer = self._make_tokenizer([*texts.values(), DEFAULT_SYSTEM])
        names = list(texts)
        pieces = tokenizer.encode_elements([f"\n{texts[name]}" for name in names])
        tokens = dict(zip(names, map(list, pieces), strict=True))
        for cid, row in found.items():
            if cid not in tokens:
                tokens[cid] = _stand_in(row)
        return Prepared.make(
            tokenizer.encode_text(DEFAULT_SYSTEM, first=True),
            ([tokens[cid] for cid in row["chunks"]] for row in rows[: spec.num_requests]),
        )


class _EntityTokens:
    """Tokens of the paths of a graph's entities, each encoded once."""

    def __init__(
        self, store: GraphStore, make_tokenizer: Callable[[Iterable[str]], PromptTokenizer]
    ) -> None:
        texts = (f"\n{text}" for triple in store.triples() for text in triple)
        self.store = store
        self.tokenizer = make_tokenizer(dict.fromkeys([*texts, " -> "]))
        self._paths = EntityPaths(store)
        self._found: dict[str, list[list[int]]] = {}

    def of(self, entity: str) -> list[list[int]]:
        """Returns a sequence for each path; an entity without paths stands alone."""
        if entity not in self._found:
            paths = self._paths.of(entity) or ((entity,),)
            self._found[entity] = TreeNode("context", paths).encode(self.tokenizer)
        return self._found[entity]


def list_traces(chunks: Path) -> list[str]:
    """Kinds of the retrieval traces in a folder."""
    found = sorted(chunks.glob("retrieval_*_requests.jsonl"))
    names = [path.name.removeprefix("retrieval_").split("_requests")[0] for path in found]
    return [CHUNKS + name for name in names]


def _stand_in(row: dict[str, Any]) -> list[int]:
    """Tokens for a chunk whose text may not be passed on: as many as its words would be."""
    rng = np.random.default_rng(int(row["sha1"], 16))
    return rng.integers(0, VOCAB_SIZE, max(1, round(row["words"] * TOKENS_PER_WORD))).tolist()
