# SPDX-License-Identifier: Apache-2.0
"""What is asked: GraphRAG prompts over a graph, by a pattern or by the questions of a set.

zipfian:metaqa     10 entities a request, up to 30 two-hop paths each, drawn by the pattern
                   from a pool of entities (paper, section 6.1); uniform and temporal too
questions:demo     the questions of a set with the paths that retrieval finds for them; what
                   counts as right is known
chunks:musique-contexts:paraphrased
                   chunks of text: a trace of a retriever (musique) or the contexts of a set
                   (musique-contexts), and a stream of `eval.chunks.streams` (paraphrased, the
                   default; file-order, zipf-0.7, zipf-1.0). Each request asks something else

lake:sql:12        tables of text-to-SQL prompts; whole:bird, linked:bird and the like too, and
                   :closed behind them (see `eval.tables.prompts`)
agents:lake:sql:12         three calls about each question with other instructions, which are the
agents-behind:lake:sql:12  system message, or stand behind the tables (see `eval.tables.agents`)

A number at the end of the first, as in zipfian:metaqa:4000, asks for prompts of about so many
tokens as plain text: as many entities as it takes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path as File

from depcache.graph.base import GraphStore
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from depcache.tables.catalog import Catalog
from depcache.tables.table import Table
from eval.chunks.streams import STREAMS, make_stream, read_set
from eval.sets import DataSet, SetError
from eval.tables.agents import INSTRUCTIONS, calls_of
from eval.tables.prompts import KINDS as TABLES
from eval.tables.prompts import Form, choose, read_form
from eval.tables.sets import SqlQuestion, SqlSet, read_sql_set
from eval.workloads.graphs import Graphs
from eval.workloads.paths import NUM_HOPS, NUM_PATHS, EntityPaths, draw_pool
from eval.workloads.patterns import KINDS, NUM_ENTITIES, make_workload
from eval.workloads.questions import texts_and_answers

QUESTIONS, CHUNKS = "questions", "chunks"
AGENTS, AGENTS_BEHIND = "agents", "agents-behind"
_NUM_FITTED = 30


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """One workload; equal specs over equal data are equal workloads.

    name          `pattern:graph[:tokens]`; the pattern is uniform, zipfian, temporal or questions.
                  Or `chunks:set[:stream]`, or a workload of tables
    num_entities  of a request; `fit` finds it where the name says tokens
    num_paths     of an entity, at most
    num_hops      of a path, at most
    pool          entities that are asked about; at most those that the graph has
    seed          of the pool, of the requests and of their order
    """

    name: str
    num_requests: int
    num_entities: int = NUM_ENTITIES
    num_paths: int = NUM_PATHS
    num_hops: int = NUM_HOPS
    pool: int = 2000
    seed: int = 0

    @property
    def pattern(self) -> str:
        return self.name.split(":")[0]

    @property
    def graph(self) -> str:
        return self.name.partition(":")[2].partition(":")[0]

    @property
    def last(self) -> str:
        """What stands behind the graph or the set."""
        return self.name.partition(":")[2].partition(":")[2]

    @property
    def is_of_tables(self) -> bool:
        return self.pattern in (*TABLES, AGENTS, AGENTS_BEHIND)

    @property
    def candidates(self) -> str:
        """The workload of tables whose prompts these are, or whose candidates agents have."""
        return self.name if self.pattern in TABLES else self.name.partition(":")[2]

    @property
    def num_tokens(self) -> int | None:
        """About how many tokens a prompt has as plain text; None: as many as its entities give."""
        text = self.last
        if not text or self.pattern == CHUNKS or self.is_of_tables:
            return None
        if not text.isdecimal() or int(text) < 1 or self.pattern == QUESTIONS:
            raise SetError(
                f"{self.name!r} is no workload: behind the graph stands a number of tokens, and "
                f"not for {QUESTIONS}"
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `answers` is empty where nobody knows what is right.

    passages  instead of paths
    tables    instead of paths, in an order that means nothing
    system    the system message of tables, which may be empty; None for the usual one
    declared  the texts of the tables, in an order that any client can give them
    by_heat   the passages, or the texts of the tables, sorted by how often they occur in the whole
              workload, most first
    """

    question: str
    entities: tuple[str, ...]
    paths: tuple[Path, ...]
    answers: tuple[str, ...] = ()
    passages: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    declared: tuple[str, ...] = ()
    by_heat: tuple[str, ...] = ()
    system: str | None = None

    @property
    def has_paths(self) -> bool:
        """Whether it is about a graph: other requests have no trees."""
        return not self.passages and not self.tables


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order they come, and the graph or the tables they are about, if any."""

    spec: ServeSpec
    requests: list[Request]
    store: GraphStore | None
    catalog: Catalog | None = None

    def digest(self) -> str:
        """Returns a digest of the spec and of all that is sent."""
        sent = [asdict(each) for each in self.requests]
        for each in sent:
            if each["system"] is None:
                del each["system"]  # so digests are those of reports from before there was one
        text = json.dumps([asdict(self.spec), sent])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make(spec: ServeSpec, graphs: Graphs) -> Workload:
    """The workload. Raises SetError when its pattern or its graph does not exist."""
    if spec.pattern == CHUNKS:
        return Workload(spec, _ask_chunks(spec, graphs.folder), None)
    if spec.is_of_tables:
        return _ask_tables(spec, graphs.folder)
    store, data = graphs.open(spec.graph)
    if spec.pattern == QUESTIONS:
        requests = _ask_questions(spec, store, data)
    elif spec.pattern in KINDS:
        requests = _draw(spec, store)
    else:
        names = ", ".join([*KINDS, QUESTIONS, CHUNKS, *TABLES, AGENTS, AGENTS_BEHIND])
        raise SetError(f"{spec.name!r} is no workload: use {names}, a colon and a graph")
    return Workload(spec, requests, store)


def fit(spec: ServeSpec, graphs: Graphs, count: Callable[[Request], int]) -> ServeSpec:
    """The spec with the number of entities that its `num_tokens` take, if it has any.

    count  tokens of a request
    """
    if spec.num_tokens is None:
        return spec
    few = make(replace(spec, num_requests=_NUM_FITTED), graphs).requests
    per_entity = sum(map(count, few)) / sum(len(request.entities) for request in few)
    return replace(spec, num_entities=max(1, round(spec.num_tokens / per_entity)))


def _draw(spec: ServeSpec, store: GraphStore) -> list[Request]:
    pool = draw_pool(store, min(spec.pool, len(store.names())), spec.seed)
    paths = EntityPaths(store, num_hops=spec.num_hops, num_paths=spec.num_paths)
    drawn = make_workload(
        spec.pattern,
        pool,
        spec.num_requests,
        num_entities=min(spec.num_entities, len(pool)),
        seed=spec.seed,
    )
    return [
        Request(
            f"What do {entities[0]} and {entities[-1]} have in common?",
            entities,
            tuple(path for entity in entities for path in paths.of(entity)),
        )
        for entities in drawn
    ]


def _ask_questions(spec: ServeSpec, store: GraphStore, data: DataSet | None) -> list[Request]:
    asked = texts_and_answers(data, None if data is None else spec.num_requests)
    order = random.Random(spec.seed)
    retriever = Retriever(store, pruner="words")
    requests: list[Request] = []
    while len(requests) < spec.num_requests:  # asked again in another order when there are few
        for text, answers in order.sample(asked, len(asked)):
            found = retriever.retrieve(text, num_hops=spec.num_hops, num_paths=spec.num_paths)
            requests.append(Request(text, tuple(found.entities), found.paths, answers))
    return requests[: spec.num_requests]


def _ask_chunks(spec: ServeSpec, folder: File | None) -> list[Request]:
    if folder is None:
        raise SetError(f"{spec.name!r} needs chunks: name the folder that holds them with --data")
    streams = {each.lower().replace(" ", "-"): each for each in STREAMS}
    stream = streams.get(spec.last or "paraphrased")
    if stream is None:
        raise SetError(f"{spec.last!r} is no stream of chunks: use {', '.join(streams)}")
    data = read_set(folder, spec.graph.replace("-", " "))
    drawn = make_stream(data.requests, stream, spec.num_requests, spec.seed)
    if len(drawn) < spec.num_requests or not data.texts:
        raise SetError(
            f"{spec.graph!r} has {len(drawn)} requests in {stream} and {len(data.texts)} texts: "
            f"ask for at most so many of the {spec.num_requests}, in a set with texts"
        )
    heat = Counter(chunk for request in drawn for chunk in request)
    requests: list[Request] = []
    for number, chunks in enumerate(drawn):
        by_heat = sorted(chunks, key=lambda chunk: (-heat[chunk], chunk))
        requests.append(
            Request(
                f"{number}. What do the passages say of each other?",
                entities=tuple(chunks),
                paths=(),
                passages=tuple(data.texts[chunk] for chunk in chunks),
                by_heat=tuple(data.texts[chunk] for chunk in by_heat),
            )
        )
    return requests


def _ask_tables(spec: ServeSpec, folder: File | None) -> Workload:
    form = read_form(spec.candidates)
    if folder is None:
        raise SetError(f"{spec.name!r} needs schemas: name the folder that holds them with --data")
    data = read_sql_set(folder, form.set_name)
    rng = random.Random(spec.seed)
    asked: list[SqlQuestion] = []
    while len(asked) < spec.num_requests:  # asked again in another order when there are few
        asked += rng.sample(data.questions, len(data.questions))
    asked = asked[: spec.num_requests]
    calls = list(_calls(spec, form, data, asked, rng))[: spec.num_requests]
    heat = Counter(name for _, names, _ in calls for name in names)
    requests: list[Request] = []
    for text, names, system in calls:
        rng.shuffle(names)
        # Databases may declare a table alike; a prompt has a text once.
        tables = {data.catalog[name].text: name for name in reversed(names)}
        kept = [name for name in names if tables[data.catalog[name].text] == name]
        by_heat = sorted(kept, key=lambda name: (-heat[name], name))
        requests.append(
            Request(
                text,
                entities=tuple(kept),
                paths=(),
                tables=tuple(data.catalog[name] for name in kept),
                declared=tuple(data.catalog[name].text for name in data.declare(kept)),
                by_heat=tuple(data.catalog[name].text for name in by_heat),
                system=system,
            )
        )
    # What is computed ahead has the usual system message.
    return Workload(spec, requests, None, data.catalog if spec.pattern in TABLES else None)


def _calls(
    spec: ServeSpec, form: Form, data: SqlSet, asked: Sequence[SqlQuestion], rng: random.Random
) -> Iterator[tuple[str, list[str], str | None]]:
    """What is asked, the names of its tables, and the system message of each request."""
    for question in asked:
        if spec.pattern in TABLES:
            yield question.text, list(choose(data, question, form, rng)), None
            continue
        for kind, names in calls_of(data, question, spec.candidates, rng).items():
            if spec.pattern == AGENTS:
                yield question.text, list(names), INSTRUCTIONS[kind]
            else:
                yield f"{INSTRUCTIONS[kind]}\n\n{question.text}", list(names), ""


def entities_of(requests: Sequence[Request]) -> list[str]:
    """What the requests are about, each once."""
    return list(dict.fromkeys(name for request in requests for name in request.entities))
