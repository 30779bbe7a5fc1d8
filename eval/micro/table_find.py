# SPDX-License-Identifier: Apache-2.0
"""What finding tables in prompts costs, with 709 tables, as Spider and BIRD have, 12 in a prompt.

Promises: finding tables of a catalog takes under 1 ms; the transport adds under 5 ms to a prompt
whose statements it has met; a prompt that is too much is given up, and costs under 100 ms. What is
too much is tried at each bound and just below it, with statements that were never met before.

`python -m eval.micro.table_find [--repeats N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import httpx

from depcache.client.transport import DepCacheTransport
from depcache.prompt.outline import Outline
from depcache.tables.catalog import Catalog
from depcache.tables.declaration import Column, Declaration, ForeignKey
from depcache.tables.find import MAX_LEN, MAX_STATEMENTS
from depcache.tables.forms import FORMS
from depcache.tables.prompt_tables import PromptTables, TablesToFind
from depcache.tables.statements import MAX_STATEMENT_LEN
from depcache.tables.table import Table
from eval.micro.spread import spread_ms
from eval.output import write_rows

NUM_TABLES = 709
NUM_HITS = 12
MEAN_COLUMNS = 5.4
WORDS = ("name", "date", "code", "amount", "status", "city", "price", "remark", "level", "owner")

Prompts = Iterator[str]


def make_catalog(rng: random.Random) -> Catalog:
    """Tables of as many columns as the sets have, which refer to none to two of those before."""
    tables: list[Table] = []
    for number in range(NUM_TABLES):
        columns = [Column(f"table_{number}_id", "INTEGER")]
        for place in range(1 + round(rng.expovariate(1 / MEAN_COLUMNS))):
            columns.append(Column(f"{rng.choice(WORDS)}_{place}", "TEXT"))
        before = rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2])))
        keys = [ForeignKey((f"table_{n}_id",), "", f"table_{n}") for n in before]
        columns += [Column(key.columns[0], "INTEGER") for key in keys]
        name = f"table_{number}"
        declared = Declaration("", name, tuple(columns), (columns[0].name,), tuple(keys))
        text = FORMS["ddl"].write(declared)
        tables.append(Table(name, text, tuple(key.target for key in keys)))
    return Catalog(tables)


def ask(tables: str) -> str:
    """A prompt about tables."""
    return f"Write SQL for these tables:\n\n{tables}\n\nHow many are there?"


def known(rng: random.Random, catalog: Catalog) -> Prompts:
    """Prompts of tables that were all met before."""
    while True:
        yield ask("\n\n".join(catalog[name].text for name in rng.sample(catalog.names, NUM_HITS)))


def hostile() -> dict[str, Callable[[], Prompts]]:
    """Prompts that are too much, by what is too much of."""
    fresh = count()
    row = "CREATE TABLE t{} (a INT);\n"

    def repeat(make: Callable[[], str]) -> Callable[[], Prompts]:
        return lambda: (make() for _ in fresh)

    def many(number: int) -> str:
        return "".join(row.format(next(fresh)) for _ in range(number))

    def broken(number: int) -> str:
        # Parentheses and quotes are whole, so the statement has an end; no dialect reads it.
        return "\n".join(f"CREATE TABLE t{next(fresh)} (a ? ~ INT, = b)" for _ in range(number))

    def wide(length: int) -> str:
        columns = ", ".join(f"c{n} INTEGER NOT NULL" for n in range(length // 26))
        return f"CREATE TABLE t{next(fresh)} ({columns});\n"

    def filled(length: int) -> str:
        text = ask(many(2))
        return text + "x" * (length - len(text))

    return {
        f"{MAX_STATEMENTS:,} statements": repeat(lambda: many(MAX_STATEMENTS)),
        f"{MAX_STATEMENTS - 1:,} statements": repeat(lambda: many(MAX_STATEMENTS - 1)),
        f"{MAX_LEN:,} characters": repeat(lambda: filled(MAX_LEN)),
        f"{MAX_LEN - 1:,} characters": repeat(lambda: filled(MAX_LEN - 1)),
        "1,000 unreadable statements": repeat(lambda: broken(1000)),
        f"statements of {MAX_STATEMENT_LEN:,} characters": repeat(
            lambda: "".join(wide(MAX_STATEMENT_LEN - 40) for _ in range(8))
        ),
        f"{MAX_STATEMENTS - 1:,} unclosed statements": repeat(
            lambda: many(MAX_STATEMENTS - 1).replace(");", ", " * 50)
        ),
    }


def body_of(prompt: str) -> httpx.Request:
    """A chat request with a prompt, as an OpenAI client sends it."""
    content = json.dumps({"model": "default", "messages": [{"role": "user", "content": prompt}]})
    headers = {"content-type": "application/json"}
    url = "http://127.0.0.1/v1/chat/completions"
    return httpx.Request("POST", url, headers=headers, content=content)


def time_each[T](asked: Iterator[T], repeats: int, call: Callable[[T], object]) -> dict[str, float]:
    """The times of a call, each with something else to ask, which is made before."""
    waiting = iter([next(asked) for _ in range(repeats)])
    return spread_ms(lambda: call(next(waiting)), repeats)


def find_rows(catalog: Catalog, repeats: int) -> Iterator[dict[str, object]]:
    """Times of finding alone, and of building what finds."""
    rng = random.Random(1)
    built = spread_ms(lambda: PromptTables.make(catalog), max(2, repeats // 10))
    yield {"case": "catalog, built", "tables": NUM_TABLES, **built}
    wanted: dict[str, TablesToFind] = {"catalog": catalog, "ddl": "ddl"}
    for name, tables in wanted.items():
        finder = PromptTables.make(tables, deadline_s=None)
        # From here on all statements are met.
        assert finder.recognise(ask("\n\n".join(table.text for table in catalog))).outline
        times = time_each(known(rng, catalog), repeats, finder.recognise)
        outline = finder.recognise(next(known(rng, catalog))).outline
        assert isinstance(outline, Outline) and outline.num_rows == NUM_HITS
        yield {"case": f"{name}, found", "tables": NUM_TABLES, "hits": NUM_HITS, **times}


def transport_rows(catalog: Catalog, repeats: int) -> Iterator[dict[str, object]]:
    """What the transport adds to a request: with it and without, before a server that answers."""
    rng = random.Random(2)
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
    ways: dict[str, httpx.BaseTransport] = {
        "no transport": answer,
        "transport, no tables": DepCacheTransport(answer),
        "transport, catalog": DepCacheTransport(answer, tables=catalog),
        "transport, ddl": DepCacheTransport(answer, tables="ddl"),
    }
    warm = [next(known(rng, catalog)) for _ in range(500)]
    for name, transport in ways.items():
        for prompt in warm:
            transport.handle_request(body_of(prompt))
        requests = map(body_of, known(rng, catalog))
        times = time_each(requests, repeats, transport.handle_request)
        yield {"case": name, "hits": NUM_HITS, **times}


def hostile_rows(catalog: Catalog, repeats: int) -> Iterator[dict[str, object]]:
    """What prompts cost that are too much, by both finders."""
    wanted: dict[str, TablesToFind] = {"ddl": "ddl", "catalog": catalog}
    for what, make in hostile().items():
        for name, tables in wanted.items():
            finder = PromptTables.make(tables)
            times = time_each(make(), repeats, finder.recognise)
            yield {"case": f"{name}, {what}", **times}


def main() -> None:
    """Print median and spread of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    logging.disable(logging.WARNING)  # a prompt that is given up says so
    catalog = make_catalog(random.Random(0))
    told: list[dict[str, object]] = []
    for rows in (
        find_rows(catalog, arguments.repeats),
        transport_rows(catalog, arguments.repeats),
        hostile_rows(catalog, max(5, arguments.repeats // 20)),
    ):
        for row in rows:
            told.append(row)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    write_rows(arguments, "python -m eval.micro.table_find", started, told)


if __name__ == "__main__":
    main()
