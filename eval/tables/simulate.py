# SPDX-License-Identifier: Apache-2.0
"""Tokens that a stream of text-to-SQL prompts costs, by what is reused. Counting, without a model.

A cache without end, whole tables, the system cached. What decides the KV of a table:

    as they come     all tables before it, in an order drawn for each prompt: a prefix cache
    declared         the same, in the order of the schemas, which any client can give them
    most asked       the same, sorted by how often the whole stream has them: knows the future
    alone            the table alone (`sees: nothing`)
    component        TableCache: it and all before it of its component, in topological order, be
                     they in the prompt or not; computed as they are first needed
    chain            the same, but only what is in the prompt: exact
    references       it and the set of tables that it refers to, directly or not, in the prompt
    references ahead  the same where tables with all they refer to, and without any, were computed
                     before the first question
    ahead            every table as it is needed was computed before
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from depcache.tables.catalog import Catalog
from eval.tables.prompts import choose, read_form
from eval.tables.sets import SqlSet

TASK_WORDS_TOKENS = 12
"""What a chat template writes around a question."""
FORMS = (
    *("whole:spider", "linked:spider", "linked:spider:closed"),
    *("whole:bird", "linked:bird", "linked:bird:closed"),
    *("lake:sql:6", "lake:sql:6:closed", "lake:sql:12", "lake:sql:12:closed"),
)
SEEDS = (0, 1, 2)
NUM_QUICK = 100

Prompts = Sequence[tuple[str, ...]]
Order = Callable[[tuple[str, ...]], Sequence[str]]
"""The tables of a prompt in the order in which they stand there."""


class _Needed:
    """What was computed before; `take` says whether one more is new."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def take(self, key: Any) -> bool:
        is_new = key not in self._known
        self._known.add(key)
        return is_new


def count(
    data: SqlSet, prompts: Prompts, lens: Mapping[str, int], rng: random.Random
) -> dict[str, int]:
    """Context tokens that all prompts together compute, by system; `context` are those they have.

    lens  tokens of each table
    rng   shuffles the tables of each prompt, for `as they come`
    """
    orders = _orders(data, prompts, rng)
    counts = {name: count_prefix(prompts, lens, order) for name, order in orders.items()}
    counts["context"] = sum(lens[table] for prompt in prompts for table in prompt)
    return counts | count_sets(data.catalog, prompts, lens) | {"ahead": 0}


def _orders(data: SqlSet, prompts: Prompts, rng: random.Random) -> dict[str, Order]:
    asked = Counter(table for prompt in prompts for table in prompt)
    return {
        "as they come": lambda prompt: rng.sample(prompt, len(prompt)),
        "declared": data.declare,
        "most asked": lambda prompt: sorted(prompt, key=lambda table: (-asked[table], table)),
    }


def count_prefix(prompts: Prompts, lens: Mapping[str, int], order: Order) -> int:
    """Context tokens that all prompts together compute with a prefix cache."""
    needed, computed = _Needed(), 0
    for prompt in prompts:
        way: tuple[str, ...] = ()
        for table in order(prompt):
            way = (*way, table)
            computed += lens[table] * needed.take(way)
    return computed


def count_sets(catalog: Catalog, prompts: Prompts, lens: Mapping[str, int]) -> dict[str, int]:
    """The same where KV is decided by a set of tables, by system."""
    references = catalog.references
    above = {name: set(references.closure([name])) - {name} for name in catalog.names}
    component = {name: each for each in references.components for name in each}
    names = ("alone", "component", "chain", "references", "references ahead")
    needed = {name: _Needed() for name in names}
    counts: dict[str, int] = dict.fromkeys(names, 0)
    for prompt in prompts:
        here = set(prompt)
        for table in prompt:
            order = component[table]
            before = order[: order.index(table)]
            seen = frozenset(above[table] & here)
            counts["alone"] += lens[table] * needed["alone"].take(table)
            for each in (*before, table):
                counts["component"] += lens[each] * needed["component"].take(each)
            chain = (table, tuple(each for each in before if each in here))
            counts["chain"] += lens[table] * needed["chain"].take(chain)
            counts["references"] += lens[table] * needed["references"].take((table, seen))
            if seen and seen != above[table]:
                is_new = needed["references ahead"].take((table, seen))
                counts["references ahead"] += lens[table] * is_new
    return counts


def describe(data: SqlSet, prompts: Prompts) -> dict[str, float]:
    """What the prompts are like; `variants` are the sets of tables that one table sees."""
    references = data.catalog.references
    variants: dict[str, set[frozenset[str]]] = {}
    for prompt in prompts:
        for table in prompt:
            seen = frozenset(references.closure([table])) & frozenset(prompt)
            variants.setdefault(table, set()).add(seen)
    numbers = [len(each) for each in variants.values()]
    return {
        "tables": sum(map(len, prompts)) / len(prompts),
        "distinct_sets": len({frozenset(prompt) for prompt in prompts}),
        "variants": sum(numbers) / len(numbers),
        "most_variants": max(numbers),
    }


class Simulated(NamedTuple):
    """What was counted, means over `SEEDS`.

    sets    a row for each of `FORMS`: what its prompts are like, `task` and `context` in tokens
    tokens  a row for each of these and each of `SYSTEMS`, in tokens a question: `computed` of the
            `context`, and `prefill`, which is those and the task
    """

    sets: list[dict[str, Any]]
    tokens: list[dict[str, Any]]


def simulate(
    open_set: Callable[[str], SqlSet], num_tokens: Callable[[str], int], *, quick: bool = False
) -> Simulated:
    """Count `FORMS`; one seed and fewer questions if `quick`."""
    found = Simulated([], [])
    for name in FORMS:
        mean = _count_form(open_set, num_tokens, name, quick=quick)
        computed = {system: mean.pop(system) for system in SYSTEMS}
        found.sets.append({"set": name, **{key: round(value, 2) for key, value in mean.items()}})
        found.tokens.extend(
            {
                "set": name,
                "system": system,
                "computed": round(tokens, 1),
                "context": round(mean["context"], 1),
                "prefill": round(tokens + mean["task"], 1),
            }
            for system, tokens in computed.items()
        )
    return found


def _count_form(
    open_set: Callable[[str], SqlSet], num_tokens: Callable[[str], int], name: str, *, quick: bool
) -> dict[str, float]:
    form = read_form(name)
    data = open_set(form.set_name)
    lens = {table.name: num_tokens(table.text) for table in data.catalog}
    runs: list[dict[str, float]] = []
    for seed in SEEDS[:1] if quick else SEEDS:
        rng = random.Random(seed)
        questions = rng.sample(data.questions, len(data.questions))
        questions = questions[:NUM_QUICK] if quick else questions
        prompts = [choose(data, question, form, rng) for question in questions]
        num = len(questions)
        task = sum(num_tokens(each.text) + TASK_WORDS_TOKENS for each in questions) / num
        found = {key: value / num for key, value in count(data, prompts, lens, rng).items()}
        runs.append({"questions": num, "task": task, **describe(data, prompts), **found})
    return {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}


SYSTEMS = (
    *("as they come", "declared", "most asked", "alone", "component", "chain", "references"),
    *("references ahead", "ahead"),
)
