# SPDX-License-Identifier: Apache-2.0
"""Tokens of agents, which ask several times about the same tables with other instructions.

For each question an agent makes three calls, one after the other:

    link    the candidates, as a workload of `eval.tables.prompts` has them: which are needed?
    write   the right ones and up to three others of the candidates: a query
    repair  the same tables: a query in the place of one that failed

What stands before a table decides its KV. With the instructions in front, as a system message, each
kind of call has KV of its own; with the tables in front all kinds share it, and the instructions,
which then stand behind, are computed every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from eval.tables.prompts import NUM_EXTRA, choose, read_form
from eval.tables.sets import SqlQuestion, SqlSet
from eval.tables.simulate import NUM_QUICK, SEEDS, SYSTEMS, TASK_WORDS_TOKENS, count

FORMS = ("whole:bird", "whole:bird:closed", "lake:sql:12", "lake:sql:12:closed")
"""The candidates; `:closed` adds to the tables of every call what they refer to."""

INSTRUCTIONS = {
    "link": "You are given tables of a database and a question. Name the tables that a query "
    "needs to answer it: those whose columns it shows, compares or counts, and those that lead "
    "from one of these to another by their foreign keys. Leave out all others. Answer with their "
    "names alone, as a list in JSON, and nothing else.",
    "write": "You are given tables of a database and a question. Write one query in the dialect of "
    "SQLite that answers it. Use only the tables and columns that are given, with their names as "
    "they stand there, and join tables by their foreign keys. Show the columns that are asked for, "
    "in the order in which they are asked for, and no others. Answer with the query alone.",
    "repair": "You are given tables of a database, a question, a query that was to answer it, and "
    "what the database said of it. Find out what is wrong: a name that is not there, a join that "
    "is missing, a value that is written in another way. Write the query anew in the dialect of "
    "SQLite, with the tables and columns that are given, and answer with it alone.",
}


def calls_of(
    data: SqlSet, question: SqlQuestion, name: str, rng: random.Random
) -> dict[str, tuple[str, ...]]:
    """The tables of each call about a question, by kind of call, in no order that means anything.

    name  of the workload that has the candidates
    """
    form = read_form(name)
    candidates = choose(data, question, read_form(name.removesuffix(":closed")), rng)
    others = data.rank(question, [each for each in candidates if each not in question.gold])
    chosen = (*question.gold, *others[: rng.choice(NUM_EXTRA)])
    if form.is_closed:
        closure = data.catalog.references.closure
        candidates, chosen = closure(candidates), closure(chosen)
    return {"link": candidates, "write": chosen, "repair": chosen}


def simulate_agents(
    open_set: Callable[[str], SqlSet], num_tokens: Callable[[str], int], *, quick: bool = False
) -> list[dict[str, Any]]:
    """A row for each of `FORMS`: tokens to compute for a question, all its calls together.

    instructions_first  by system, what is computed of tables and questions
    tables_first        the same and the instructions
    """
    rows: list[dict[str, Any]] = []
    told = sum(map(num_tokens, INSTRUCTIONS.values()))
    for name in FORMS:
        data = open_set(read_form(name).set_name)
        lens = {table.name: num_tokens(table.text) for table in data.catalog}
        runs: list[tuple[float, dict[str, float], dict[str, float]]] = []
        for seed in SEEDS[:1] if quick else SEEDS:
            rng = random.Random(seed)
            asked = rng.sample(data.questions, len(data.questions))
            asked = asked[:NUM_QUICK] if quick else asked
            calls = [calls_of(data, question, name, rng) for question in asked]
            task = sum(num_tokens(each.text) + TASK_WORDS_TOKENS for each in asked)
            task *= len(INSTRUCTIONS)
            apart = [
                count(data, [each[kind] for each in calls], lens, rng) for kind in INSTRUCTIONS
            ]
            together = count(
                data, [tables for each in calls for tables in each.values()], lens, rng
            )
            num = len(asked)
            first = {s: (task + sum(each[s] for each in apart)) / num for s in SYSTEMS}
            behind = {s: (task + together[s]) / num + told for s in SYSTEMS}
            runs.append((together["context"] / num, first, behind))
        rows.append(
            {
                "set": name,
                "calls": len(INSTRUCTIONS),
                "context": round(sum(run[0] for run in runs) / len(runs), 1),
                "instructions": told,
                "instructions_first": _mean([run[1] for run in runs]),
                "tables_first": _mean([run[2] for run in runs]),
            }
        )
    return rows


def _mean(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(sum(run[name] for run in runs) / len(runs), 1) for name in SYSTEMS}
