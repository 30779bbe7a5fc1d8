# SPDX-License-Identifier: Apache-2.0
"""Are the answers right where tables do not see all others: readers of tables, on a real server.

Models that were trained alike but for what a table sees (`models.tiny.train_tables`) write SQL for
questions about schemas that none of them was trained on. Each is read as it was trained, and over
made-up schemas under every other mask too. An answer is right where it selects, over two databases
of made-up rows, what the gold query does.

    made_up       new schemas of 4 to 12 tables, of words that those of the training have too
    more_tables   the same with 13 to 18
    other_shapes  the same with references drawn as trees and rings
    no_words      the same with names of tables and columns that are no words
    new_words     the same with words that training never has
    spider, bird  real schemas, and questions from the same templates
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depcache.client.client import Client
from depcache.prompt.render import DEFAULT_TABLE_SYSTEM, render_rows
from depcache.tables.catalog import Catalog
from depcache.tables.render import HEADING, render_tables
from depcache.tables.seen import SEES
from eval.quality.scores import group_interval
from eval.servers import serve
from eval.sets import read_rows
from eval.tables.execution import Database, is_same_query, join_conditions, select_alike
from eval.tables.sets import declarations_of, file_of
from models.tiny.schemas import Schema, make_schema, schema_of
from models.tiny.sql_questions import MAX_JOINS, Question, make_questions
from models.tiny.stages import BASE, ORDINARY, TABLE_MODES

Flags = NDArray[np.bool_]
"""Whether each answer is right."""

MADE_UP = "made_up"
REAL_SETS = ("spider", "bird")
SETS = (MADE_UP, "more_tables", "other_shapes", "no_words", "new_words", *REAL_SETS)
NUM_OF_SCHEMA = {name: 30 if name in REAL_SETS else 8 for name in SETS}
"""Questions of a schema at most, by the set: there are few real ones."""

MAX_TOKENS = 160
POOL_TOKENS = 200_000
NUM_AT_ONCE = 16
_SEED = 77
_MAX_TABLES = 20  # of a real schema: what the readers can hold
_MIN_TABLES = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the tables of its prompt in any order, and what tells whether SQL is right.

    schema  the number of its schema in the set: questions of one are not independent
    """

    question: Question
    catalog: Catalog
    databases: tuple[Database, ...]
    schema: int

    @property
    def gold(self) -> str:
        return self.question.sql


def make_set(name: str, number: int, data: Path | None = None) -> list[Asked]:
    """So many questions of a set, or all it has, from as many schemas as they need.

    data  a folder for `eval.tables.sets`, for the real ones. Raises SetError where it has none.
    """
    rng = random.Random(f"{_SEED} {name}")
    found: list[Asked] = []
    for place, schema in enumerate(_schemas(name, rng, data)):
        databases = (Database(schema, 1), Database(schema, 2))
        questions = make_questions(rng, schema, NUM_OF_SCHEMA[name], databases[0].values(rng))
        tables = list(schema.tables)
        rng.shuffle(tables)
        catalog = Catalog(tables)
        found += [
            Asked(each, catalog, databases, place)
            for each in questions
            if all(database.select(each.sql) for database in databases)
        ]
        if len(found) >= number:
            break
    return found[:number]


def _schemas(name: str, rng: random.Random, data: Path | None) -> Iterator[Schema]:
    if name in REAL_SETS:
        if data is None:
            return
        rows = read_rows(file_of(data, name, "schemas"), ("db_id", "tables", "foreign_keys"))
        real = [declarations_of(row) for _, row in rows]
        real = [each for each in real if _MIN_TABLES <= len(each) <= _MAX_TABLES]
        rng.shuffle(real)
        yield from map(schema_of, real)
        return
    sizes = (13, 18) if name == "more_tables" else (4, 12)
    while True:
        yield make_schema(
            rng,
            rng.randint(*sizes),
            pseudo_share=float(name == "no_words"),
            is_held_out=name == "new_words",
            has_new_shapes=name == "other_shapes",
        )


def request_of(asked: Asked, mode: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The messages of a question and what goes beside them: nothing where it is read flat."""
    text = asked.question.text
    if mode == ORDINARY:
        texts = dict.fromkeys(table.text for table in asked.catalog)
        rendered = render_rows(texts, text, heading=HEADING, system=DEFAULT_TABLE_SYSTEM)
        return rendered.messages, {}
    rendered = render_tables(asked.catalog, None, text, sees=mode)
    return rendered.messages, rendered.extra_body


def ask_all(client: Client, mode: str, questions: Sequence[Asked], salt: str) -> list[str]:
    """The answers in order, of requests that find what others with this salt have left."""

    def ask(number: int) -> str:
        messages, extra = request_of(questions[number], mode)
        reply = client.chat(messages, max_tokens=MAX_TOKENS, cache_salt=salt, **extra)
        return reply.text.strip()

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        return list(pool.map(ask, range(len(questions))))


def measure_answers(
    models: Path, sets: dict[str, list[Asked]], log_folder: Path
) -> list[dict[str, Any]]:
    """One row for each model, mode and set. Every model is served by itself, one after another.

    models  a folder of `models.tiny.train_tables`: those of its models that are there are asked
    """
    flat: dict[str, Flags] = {}
    rows: list[dict[str, Any]] = []
    for model in (ORDINARY, BASE, *SEES):
        if not (models / model / "config.json").exists():
            continue
        log_file = log_folder / f"{model}.log"
        with (
            serve(str(models / model), log_file, pool_tokens=POOL_TOKENS, settings={}) as url,
            Client(url) as client,
        ):
            rows += _measure_model(client, model, sets, flat)
    return rows


def _measure_model(
    client: Client, model: str, sets: dict[str, list[Asked]], flat: dict[str, Flags]
) -> Iterator[dict[str, Any]]:
    """The rows of one model.

    flat  what ordinary attention answers rightly, by set; the first model adds it
    """
    own = ORDINARY if model == BASE else model
    asked = [
        (mode, name, questions)
        for mode in TABLE_MODES
        for name, questions in sets.items()
        if questions and (mode == own or name == MADE_UP)
    ]
    for mode, name, questions in asked:
        salt = f"{name} {mode}"
        answers = ask_all(client, mode, questions, salt)
        right = np.array(
            [
                select_alike(each.databases, answer, each.gold)
                for each, answer in zip(questions, answers, strict=True)
            ]
        )
        if model == mode == ORDINARY:
            flat[name] = right
        row: dict[str, Any] = {"model": model, "mode": mode, "set": name}
        row |= score(questions, answers, right, flat.get(name))
        if mode == own != ORDINARY:
            # Now all is cached that this prompt shares with any other.
            again = ask_all(client, mode, questions[::-1], salt)[::-1]
            same = [a == b for a, b in zip(answers, again, strict=True)]
            row["warm_same"] = round(float(np.mean(same)), 4)
        yield row


def score(
    questions: Sequence[Asked],
    answers: Sequence[str],
    right: Flags,
    flat: Flags | None,
) -> dict[str, Any]:
    """What a row says. Intervals are of 95 %, by bootstrap over schemas.

    right  whether each answer selects what it should
    flat   the same of ordinary attention, to say what is lost against it; None where not asked
    """
    same = [is_same_query(a, each.gold) for each, a in zip(questions, answers, strict=True)]
    places = np.array([each.schema for each in questions])
    low, high = group_interval(right, places)
    row: dict[str, Any] = {
        "questions": len(questions),
        "schemas": len(set(places.tolist())),
        "em": round(float(np.mean(same)), 4),
        "executes": round(float(right.mean()), 4),
        "low": low,
        "high": high,
        "by_joins": {
            str(num): round(float(right[chosen].mean()), 4)
            for num in range(MAX_JOINS + 1)
            if (chosen := np.array([q.question.num_joins == num for q in questions])).any()
        },
    }
    joined = [
        join_conditions(answer) == join_conditions(each.gold)
        for each, answer in zip(questions, answers, strict=True)
        if each.question.num_joins
    ]
    if joined:
        row |= {"joined": len(joined), "join_em": round(float(np.mean(joined)), 4)}
    if flat is not None:
        lost = flat.astype(float) - right.astype(float)
        low, high = group_interval(lost, places)
        row |= {"lost": round(float(lost.mean()), 4), "lost_low": low, "lost_high": high}
    return row
