# SPDX-License-Identifier: Apache-2.0
"""Made-up graphs and questions about them: what depcache-tiny learns to read from.

Every world is new, so nothing in it can be known by heart: what is to be learned is to find the
path that a question describes, to say it, and to name where it ends.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import networkx as nx

from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import Path
from depcache.training.examples import Example
from models.tiny.invented import draw_relations
from models.tiny.names import NOUNS, Names
from models.tiny.relations import Lexicon, ask, describe, load_relations, weight_of

_SIZES = {
    "person": (3, 7),
    "city": (2, 5),
    "state": (1, 3),
    "university": (1, 3),
    "building": (1, 3),
}
_OTHERS = (0, 3)
_OWN = (2, 5)  # where a relation is a world's own
_THINNEST = 3.0
"""Every world has its own density of facts: shares of relations to the power of 1 to this."""

UNKNOWN = "The facts do not say."
"""What is to be said when they do not."""

_NUM_TOPICS = (1, 1, 1, 2, 2, 3)
_NUM_HOPS = (2, 3, 3, 3)
"""Hops of the longest path. It is often longer than what is asked: stopping is learned too."""

_UNKNOWN_SHARE = 0.05  # of the groups of questions
_BOTH_SHARE = 0.25  # of the questions where two topics lead to the same thing
_SEVERAL_SHARE = 0.2  # of what can be asked where several paths would be right; only one is
_LOOK_AHEAD_SHARE = 0.3  # of what can be asked where only a later step tells which branch to take
_KEPT_SHARE = 0.5  # of what can be asked for, where no relation is asked for more than others
_NOUN_SHARE = 0.15
_WITH_ARTICLE, _ARTICLE_SHARE = ("river", "sea"), 0.7
_ASIDE_SHARE = 0.2
_YEAR_SHARE = 0.15


def make_world(rng: random.Random, names: Names, lexicon: Lexicon | None = None) -> nx.MultiDiGraph:
    """A small graph of a few things of every kind; edges carry `relation`, nodes `kind`.

    lexicon  its relations, by default those of `relations.yaml`
    """
    lexicon = lexicon or load_relations()
    sizes = _SIZES | {
        kind: _OWN
        for name, relation in lexicon.items()
        if name not in load_relations()
        for join in relation.joins
        for kind in join
    }
    things = {
        kind: [names.draw(kind) for _ in range(rng.randint(*sizes.get(kind, _OTHERS)))]
        for kind in sorted({kind for r in lexicon.values() for join in r.joins for kind in join})
    }
    graph = nx.MultiDiGraph()
    for kind, members in things.items():
        graph.add_nodes_from(members, kind=kind)
    thinness = rng.uniform(1.0, _THINNEST)
    for relation in lexicon.values():
        for subjects, objects in relation.joins:
            for subject in things[subjects]:
                if rng.random() > relation.share**thinness:
                    continue
                choices = [each for each in things[objects] if each != subject]
                for obj in rng.sample(choices, min(len(choices), rng.randint(1, relation.most))):
                    if not graph.has_edge(obj, subject):
                        graph.add_edge(subject, obj, relation=relation.name)
    return graph


def answer_of(*paths: Path, answer: str | None = None) -> str:
    """What the model is to say: the evidence as it stands in the facts, then the answer.

    answer  by default where the last path ends
    """
    end = paths[-1][-1] if answer is None else answer
    return "\n".join([*(" -> ".join(path) for path in paths), f"Answer: {end}"])


def walks_of(paths: Iterable[Path]) -> list[Path]:
    """What can be asked for: the beginnings of the paths, the first of each kind of walk."""
    first: dict[tuple[str, ...], Path] = {}
    for start in _beginnings_of(paths):
        first.setdefault(start[1::2], start)
    return list(first.values())


def alternatives_of(walk: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    """What would be as right as `walk`: the others that go the same way from the same start."""
    same = (walk[0], walk[1::2])
    return tuple(
        answer_of(start)
        for start in _beginnings_of(path for path in paths if len(path) >= len(walk))
        if (start[0], start[1::2]) == same and start != walk
    )


def _beginnings_of(paths: Iterable[Path]) -> list[Path]:
    """Returns the beginnings of one edge, of two, ... up to the paths themselves, each once."""
    starts = (path[:stop] for path in paths for stop in range(3, len(path) + 1, 2))
    return list(dict.fromkeys(starts))


def make_examples(
    seed: int,
    *,
    num_questions: int = 6,
    max_paths: int = 30,
    forbidden: frozenset[str] = frozenset(),
    natural: Sequence[str] = (),
    made_up_relations: float = 0.0,
) -> Iterator[Example]:
    """Examples without end, up to `num_questions` in a row over the same paths.

    max_paths  of all topics together; there are one to three, as a question may name several
    forbidden  names that must not be drawn, because they are asked about in an evaluation
    natural    names of real things; see `Names`
    made_up_relations  share of worlds that have relations of their own; see `invented`
    """
    rng = random.Random(seed)
    asked: Counter[str] = Counter()
    while True:
        lexicon = load_relations()
        counts = asked
        if made_up_relations and rng.random() < made_up_relations:
            lexicon = draw_relations(rng, forbidden)
            counts = Counter()  # no relation of this world comes again
        graph = make_world(rng, Names(rng, forbidden, natural), lexicon)
        topics = [node for node in graph if graph.degree(node) > 1]
        if not topics:
            continue
        topics = _draw_topics(graph, topics, rng.choice(_NUM_TOPICS), rng)
        most = rng.randint(min(4, max_paths), max_paths)
        retriever = Retriever(graph, pruner="none", max_hops=rng.choice(_NUM_HOPS))
        found = retriever.retrieve("", entities=topics, num_paths=max(2, most // len(topics))).paths
        starts = {
            topic: _beginnings_of(path for path in found if path[0] == topic) for topic in topics
        }
        walks = {topic: _draw_walks(group, rng) for topic, group in starts.items()}
        pairs = _draw_pairs(starts, rng)
        is_known = rng.random() >= _UNKNOWN_SHARE
        if not is_known:
            gone = rng.choice(topics)
            found = tuple(path for path in found if path[0] != gone)
            walks, pairs = {gone: walks[gone]}, []
        drawn = _draw_questions(walks, pairs, graph, lexicon, num_questions, counts, rng)
        for question, *evidence in drawn:
            if is_known:
                # What two topics have in common is asked for only where it is one thing.
                others = alternatives_of(evidence[0], found) if len(evidence) == 1 else ()
                yield Example(question, found, answer_of(*evidence), others)
            else:
                yield Example(question, found, UNKNOWN)


def _draw_topics(
    graph: nx.MultiDiGraph, nodes: Sequence[str], number: int, rng: random.Random
) -> list[str]:
    """Different ones, every kind of thing as likely as another, however many there are of it."""
    kinds = graph.nodes(data="kind")
    counts = Counter(kinds[node] for node in nodes)
    # Weighted, without replacement (Efraimidis and Spirakis 2006).
    keys = {node: rng.expovariate(1 / counts[kinds[node]]) for node in nodes}
    return sorted(nodes, key=keys.__getitem__)[:number]


def _draw_walks(starts: Sequence[Path], rng: random.Random) -> list[Path]:
    """What is to be asked for: seldom what has several answers, as no reader knows the one."""
    ways = Counter(start[1::2] for start in starts)
    return [
        walk
        for walk in walks_of(starts)
        if rng.random() < (_branch_share(walk, ways) if ways[walk[1::2]] == 1 else _SEVERAL_SHARE)
    ]


def _draw_pairs(starts: dict[str, list[Path]], rng: random.Random) -> list[tuple[Path, Path]]:
    """What two topics have in common, each with any number of others: "Where did both study?"."""
    ways = {topic: Counter(start[1::2] for start in group) for topic, group in starts.items()}
    pairs: list[tuple[Path, Path]] = []
    for (topic, mine), (rival, theirs) in combinations(starts.items(), 2):
        found = [
            (one, other)
            for one in mine
            for other in theirs
            if one[-2:] == other[-2:] and rival not in one and topic not in other
        ]
        common = Counter((one[1::2], other[1::2]) for one, other in found)
        pairs += [
            (one, other)
            for one, other in found
            if common[one[1::2], other[1::2]] == 1
            and rng.random() < _branch_share(one, ways[topic]) * _branch_share(other, ways[rival])
        ]
    return pairs


def _branch_share(walk: Path, ways: Counter[tuple[str, ...]]) -> float:
    """How much of what several branches begin alike: "the film of a winner", one of whom made one.

    A small model spends itself on finding that one.

    ways  number of ends by relations
    """
    is_branched = any(ways[walk[1:stop:2]] > 1 for stop in range(3, len(walk), 2))
    return _LOOK_AHEAD_SHARE if is_branched else 1.0


def _draw_questions(
    walks: dict[str, list[Path]],
    pairs: Sequence[tuple[Path, Path]],
    graph: nx.MultiDiGraph,
    lexicon: Lexicon,
    number: int,
    asked: Counter[str],
    rng: random.Random,
) -> Iterator[tuple[str, *tuple[Path, ...]]]:
    """Questions, each with its evidence.

    asked  how often a relation was asked for, which goes on here; what was asked for more often
           than others is left out now and then
    """
    singles = [(walk,) for group in walks.values() for walk in group]
    num_pairs = min(len(pairs), round(number * _BOTH_SHARE))
    chosen: list[tuple[Path, ...]] = [*rng.sample(pairs, num_pairs)]
    mean = asked.total() / max(1, len(asked))
    most = _KEPT_SHARE * (1 + mean)
    rare = [
        (walk,)
        for (walk,) in singles
        if rng.random() * (1 + asked[walk[-2]]) < most * weight_of(walk[-2], lexicon)
    ]
    chosen += rng.sample(rare, min(len(rare), number - num_pairs))
    asked.update(evidence[-1][-2] for evidence in chosen)
    rng.shuffle(chosen)
    for evidence in chosen:
        ends = [
            describe(_name(walk[0], graph, rng), walk[1:-2:2], rng, lexicon) for walk in evidence
        ]
        known = f"both {ends[0]} and {ends[1]}" if len(ends) == 2 else ends[0]
        question = ask(known, evidence[-1][-2:-1], rng, lexicon)
        others = [topic for topic in walks if all(topic not in walk for walk in evidence)]
        yield _decorate(question, others, rng), *evidence


def _name(topic: str, graph: nx.MultiDiGraph, rng: random.Random) -> str:
    """The topic, now and then with what it is: `the film X`."""
    kind = graph.nodes[topic]["kind"]
    if kind in NOUNS and rng.random() < _NOUN_SHARE:
        return f"the {rng.choice(NOUNS[kind])} {topic}"
    return f"the {topic}" if kind in _WITH_ARTICLE and rng.random() < _ARTICLE_SHARE else topic


def _decorate(question: str, others: Sequence[str], rng: random.Random) -> str:
    """Now and then a year, or a mention of another thing, that a reader can pass over."""
    if rng.random() < _YEAR_SHARE:
        year = rng.randint(1900, 2025)
        question = re.sub(r"\bthe film\b", f"the {year} film", question, count=1)
        question = re.sub(r"\bfounded\?", f"founded in {year}?", question, count=1)
    if others and rng.random() < _ASIDE_SHARE:
        aside = rng.choice((f" on {others[0]}", f" near {others[0]}"))
        question = re.sub(r"\b[Ii]n which (city|town)\b", rf"\g<0>{aside}", question, count=1)
    return question
