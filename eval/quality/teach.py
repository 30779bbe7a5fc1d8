# SPDX-License-Identifier: Apache-2.0
"""Training examples from public sets: `python -m eval teach --data data/kg OUT.jsonl`.

From MetaQA come the graph, without what is asked about in the evaluation, and the ways its
other questions are phrased; new questions are asked about that graph in these phrases. From
2Wiki come the questions of its train part, as they are and with other names.
"""

from __future__ import annotations

import random
import re
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path as File

from depcache.demo.sample import load_entities
from depcache.graph.retrieval import Retriever
from depcache.prompt.paths import INVERSE_RELATION, Path
from depcache.training.examples import Example, write_examples
from eval.sets import DataSet, Question, load_folder
from eval.workloads.graphs import hold
from eval.workloads.questions import asked_of, sets_of, taught_of, topics_of, without
from eval.workloads.unseen import unseen_entities, unseen_relations
from models.tiny.names import Names
from models.tiny.worlds import UNKNOWN, alternatives_of, answer_of, walks_of

_QUESTIONS_A_TOPIC = 6
_NUM_PATHS = (6, 30)
_THREE_HOPS_SHARE = 0.3
_RENAMED_SHARE = 0.75
_RELATION_OF = {
    "director": "directed_by",
    "writer": "written_by",
    "actor": "starred_actors",
    "year": "release_year",
    "language": "in_language",
    "genre": "has_genre",
    "tag": "has_tags",
    "tags": "has_tags",
}
_FIXED = re.compile(r"\d|^(yes|no)$")  # dates and verdicts keep their text


def relations_of(kind: str) -> tuple[str, ...]:
    """`actor_to_movie_to_year`: inverse of starred_actors, release_year. Empty for other kinds."""
    stops = kind.split("_to_")
    relations = []
    for start, stop in pairwise(stops):
        if start == "movie" and stop in _RELATION_OF:
            relations.append(_RELATION_OF[stop])
        elif stop == "movie" and start in _RELATION_OF:
            relations.append(INVERSE_RELATION + _RELATION_OF[start])
        else:
            return ()
    return tuple(relations)


def phrases_of(questions: Sequence[Question]) -> dict[tuple[str, ...], list[str]]:
    """How questions for each kind of walk are put, with {x} for the topic."""
    phrases: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for question in questions:
        relations, [topic] = relations_of(question.kind), question.entities
        if relations and question.text.count(topic) == 1:
            phrases[relations][question.text.replace(topic, "{x}")] = None
    return {relations: list(texts) for relations, texts in phrases.items()}


def teach_metaqa(sets: Sequence[DataSet], unseen: frozenset[str], seed: int) -> Iterator[Example]:
    """Examples without end; groups of up to six share their paths."""
    rng = random.Random(seed)
    questions = [question for data in sets for question in taught_of(data, unseen)]
    phrases = phrases_of(questions)
    retriever = Retriever(hold(without(sets[0], unseen)), pruner="words")
    while True:
        question = rng.choice(questions)
        [topic] = question.entities
        hops = 3 if rng.random() < _THREE_HOPS_SHARE else 2
        paths = retriever.retrieve(
            question.text, entities=[topic], num_hops=hops, num_paths=rng.randint(*_NUM_PATHS)
        ).paths
        known = [walk for walk in walks_of(paths) if walk[1::2] in phrases]
        for walk in rng.sample(known, min(len(known), _QUESTIONS_A_TOPIC)):
            text = rng.choice(phrases[walk[1::2]]).replace("{x}", topic)
            yield Example(text, paths, answer_of(walk), alternatives_of(walk, paths))


def teach_2wiki(data: DataSet, unseen: frozenset[str], seed: int) -> Iterator[Example]:
    """Examples without end: each question with names of its own, most times made-up ones."""
    rng = random.Random(seed)
    triples = without(data, unseen)
    retriever = Retriever(hold(triples), pruner="words")
    known = set(triples)
    names = {name for head, _, tail in triples for name in (head, tail)}
    questions = [q for q in taught_of(data, unseen) if not names.isdisjoint(q.entities)]
    while True:
        for question in rng.sample(questions, len(questions)):
            entities = [entity for entity in question.entities if entity in names]
            paths = retriever.retrieve(question.text, entities=entities).paths
            if not known.issuperset(question.evidence):
                continue
            example = Example(question.text, paths, _answer_2wiki(question, paths))
            yield _rename(example, rng, unseen) if rng.random() < _RENAMED_SHARE else example


def _answer_2wiki(question: Question, paths: Sequence[Path]) -> str:
    """The evidence, chained where one triple goes on from another, and the answer."""
    edges = {path[i : i + 3] for path in paths for i in range(0, len(path) - 2, 2)}
    if not edges.issuperset(question.evidence):
        return UNKNOWN
    chains: list[Path] = []
    for head, relation, tail in question.evidence:
        for i, chain in enumerate(chains):
            if chain[-1] == head:
                chains[i] = (*chain, relation, tail)
                break
        else:
            chains.append((head, relation, tail))
    return answer_of(*chains, answer=question.answers[0])


def _rename(example: Example, rng: random.Random, unseen: frozenset[str]) -> Example:
    """The same with made-up names for everything that is spelled out in question or paths."""
    names = Names(rng, unseen)
    found = {node for path in example.paths for node in path[::2] if not _FIXED.search(node)}
    if not found:
        return example
    kinds = ("person", "film", "book", "city")
    new = {name: names.draw(rng.choice(kinds)) for name in sorted(found)}
    spelled = {name.casefold(): other for name, other in new.items()}  # 2Wiki capitalizes freely
    longest_first = sorted(map(re.escape, new), key=len, reverse=True)
    pattern = re.compile(rf"\b(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE)

    def swap(text: str) -> str:
        return pattern.sub(lambda match: spelled[match.group().casefold()], text)

    paths = tuple(
        tuple(new.get(part, part) if i % 2 == 0 else part for i, part in enumerate(path))
        for path in example.paths
    )
    return Example(swap(example.question), paths, swap(example.answer))


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of `python -m eval teach`."""
    parser.add_argument("out", type=File, help="a JSONL file for models.tiny.train --examples")
    parser.add_argument("--data", type=File, required=True, help="folder of sets, such as data/kg")
    parser.add_argument("--number", type=int, default=24000, help="examples (default 24000)")
    parser.add_argument("--seed", type=int, default=0)


def unseen_of(sets: Sequence[DataSet]) -> frozenset[str]:
    """What `python -m eval quality` asks about, the demo's graph and the unseen ones included.

    Of the unseen ones the relations too, which may be no made-up world's either.
    """
    asked = (topics_of(asked_of(data)) for data in sets)
    return load_entities().union(unseen_entities(), unseen_relations(), *asked)


def run(args: Namespace) -> int:
    """Write the examples, and beside them the names that are in none of them."""
    sets = load_folder(args.data)
    metaqa, wiki = sets_of(sets, "metaqa"), sets_of(sets, "2wiki")
    unseen = unseen_of([*metaqa, *wiki])
    num_wiki = args.number // 8
    examples = [*islice(teach_metaqa(metaqa, unseen, args.seed), args.number - num_wiki)]
    examples += islice(teach_2wiki(wiki[0], unseen, args.seed), num_wiki)
    number = write_examples(examples, args.out)
    names = args.out.with_suffix(".unseen.txt")
    names.write_text("".join(f"{name}\n" for name in sorted(unseen)), encoding="utf-8")
    print(f"{args.out}: {number} examples; {names}: {len(unseen)} names kept unseen")
    return 0
