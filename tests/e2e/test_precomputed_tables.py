# SPDX-License-Identifier: Apache-2.0
"""A schema, precomputed: closed prompts miss nothing, after a restart too, and a change takes its.

The commands are those that people run, against real servers with every tier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from depcache.client import Client
from depcache.client.reply import ReuseReport
from depcache.tables import Catalog, Table, render_tables
from tests.helpers.commands import run_json, serve_every_tier

pytestmark = pytest.mark.sglang

REFERENCES = {
    "orders": ("buyers", "goods"),
    "buyers": ("towns",),
    "goods": ("makers",),
    "makers": ("towns",),
    "towns": (),
    "holidays": (),
}
SALT = "tenant"


def make_catalog(**columns: str) -> Catalog:
    """Six tables with a column each, of which some have another one."""
    return Catalog(
        Table(
            name,
            f"CREATE TABLE {name} (id INTEGER, {columns.get(name, 'name')} TEXT"
            + "".join(f", FOREIGN KEY ({each}_id) REFERENCES {each} (id)" for each in targets)
            + ")",
            targets,
        )
        for name, targets in REFERENCES.items()
    )


OLD, NEW = make_catalog(), make_catalog(buyers="surname")


@dataclass
class Work:
    """A folder with catalogs, states and what the servers write."""

    folder: Path
    model: Path

    def serve(self) -> AbstractContextManager[Client]:
        return serve_every_tier(self.model, self.folder)

    def run(self, client: Client, command: str, *arguments: object) -> dict[str, Any]:
        """What a command says with --json."""
        return run_json("tables", command, "--server", client.base_url, *arguments)

    def precompute(self, client: Client, catalog: str = "old", *more: object) -> dict[str, Any]:
        named = self.folder / f"{catalog}.jsonl"
        state = self.folder / f"state{'-'.join(map(str, more))}.jsonl"
        return self.run(client, "precompute", "--catalog", named, "--state", state, *more)


def ask(client: Client, *names: str, catalog: Catalog = OLD, **fields: Any) -> ReuseReport:
    report = client.ask_tables(catalog, names, "How many?", max_tokens=1, **fields).depcache
    assert report is not None
    return report


def check_closed_prompts(client: Client, **fields: Any) -> None:
    """Ask about tables in any order, closed as `ask_tables` does it: nothing is missed."""
    rng = random.Random(4)
    for _ in range(6):
        names = rng.sample(list(REFERENCES), rng.randint(1, 4))
        assert ask(client, *names, **fields).missed == 0


@pytest.fixture(scope="module")
def work(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Precomputed for everyone and for one tenant, by a server that has ended."""
    work = Work(tmp_path_factory.mktemp("tables"), model_path("llama_gqa"))
    OLD.write(work.folder / "old.jsonl")
    NEW.write(work.folder / "new.jsonl")
    with work.serve() as client:
        estimate = work.precompute(client, "old", "--estimate")["estimate"]
        assert (estimate["tables"], estimate["cached_tokens"]) == (6, 0)
        first = work.precompute(client)
        assert first["computed"] == first["tables"] == 6
        # Each token once: all tables in one prompt have as many.
        prompt = client.explain(render_tables(OLD, None, "How many?"))
        assert prompt["missed"] == 0
        assert first["tokens_computed"] == prompt["context_tokens"]
        check_closed_prompts(client)
        assert work.precompute(client)["requests"] == 0
        assert ask(client, "orders", cache_salt=SALT).missed > 0  # nobody computed it for them
        assert work.precompute(client, "old", "--salt", SALT)["computed"] == 6
        assert client.stats()["tiers"]["disk"]["waiting_tokens"] == 0
    return work


@pytest.fixture(scope="module")
def restarted(work: Work) -> Iterator[Client]:
    with work.serve() as client:
        yield client


def test_after_a_restart_closed_prompts_miss_nothing(work: Work, restarted: Client) -> None:
    again = work.precompute(restarted)
    assert (again["requests"], again["resumed"], again["notes"]) == (0, 6, [])
    check_closed_prompts(restarted)
    check_closed_prompts(restarted, cache_salt=SALT)


def test_of_a_change_the_table_and_what_refers_to_it_is_given_up(
    work: Work, restarted: Client
) -> None:
    change = ["--old", work.folder / "old.jsonl", "--catalog", work.folder / "new.jsonl"]
    said = work.run(restarted, "invalidate", *change, "--dry-run")
    assert (said["changed"], said["stale"]) == (["buyers"], ["buyers", "orders"])
    assert work.run(restarted, "invalidate", *change, "--salt", "nobody")["tokens"] == {
        "device": 0,
        "host": 0,
        "disk": 0,
    }
    found = work.run(restarted, "invalidate", *change, "--state", work.folder / "state.jsonl")
    assert (found["stale"], found["forgotten"]) == (["buyers", "orders"], 2)
    assert found["tokens"]["disk"] > 0 and not found["problems"]
    tenants: list[dict[str, Any]] = [{}, {"cache_salt": SALT}]
    for fields in tenants:
        assert ask(restarted, "goods", "holidays", **fields).missed == 0
        explained = restarted.explain({**_request("buyers"), **fields})
        assert explained["missed"] > 0


def test_of_the_new_catalog_only_what_is_new_is_computed(work: Work, restarted: Client) -> None:
    again = work.precompute(restarted, "new")
    assert (again["computed"], again["unchanged"]) == (2, 4)
    for names in (["orders"], ["holidays", "buyers"], list(REFERENCES)):
        assert ask(restarted, *names, catalog=NEW).missed == 0


def test_prompts_with_any_columns_of_tables_computed_in_parts_miss_nothing(
    work: Work, restarted: Client
) -> None:
    source, path = work.folder / "wide.sql", work.folder / "wide.jsonl"
    source.write_text(
        "CREATE TABLE shop (id INT PRIMARY KEY, name TEXT, street TEXT, name2 TEXT);"
        "CREATE TABLE sale (id INT PRIMARY KEY, shop INT REFERENCES shop, name TEXT, at DATE);"
    )
    assert run_json("tables", "load", source, "--columns", "--catalog", path)["tables"] == 7
    catalog = Catalog.read(path)
    whole = render_tables(catalog, None, "How many?")
    computed = work.precompute(restarted, "wide")["tokens_computed"]
    explained = restarted.explain({"messages": whole.messages, **whole.extra_body})
    # What begins like a cached row, with CREATE TABLE or the table's name, is not computed again.
    assert 0 < computed < explained["context_tokens"]
    assert explained["missed"] == 0
    rng = random.Random(5)
    for _ in range(6):
        names = rng.sample(catalog.names, rng.randint(1, 4))
        assert ask(restarted, *names, catalog=catalog).missed == 0
    assert ask(restarted, "sale.*", "shop.s*", catalog=catalog).missed == 0


def test_a_column_reuses_what_another_of_its_table_begins_with(restarted: Client) -> None:
    catalog = Catalog(
        [
            Table("shop", "CREATE TABLE shop (id INT)"),
            Table("shop.name", "ALTER TABLE shop ADD COLUMN name TEXT", ("shop",)),
            Table("shop.town", "ALTER TABLE shop ADD COLUMN town TEXT", ("shop",)),
        ]
    )
    # In one prompt each row is computed whole.
    both = ask(restarted, *catalog.names, catalog=catalog, cache_salt="at once")
    assert both.missed == both.context_tokens
    # A later one is computed from where it differs from a cached row.
    table, name, town = (
        ask(restarted, each, catalog=catalog, cache_salt="one by one") for each in catalog.names
    )
    assert table.missed == table.context_tokens
    assert name.missed == name.context_tokens - table.context_tokens
    assert 0 < town.missed < name.missed / 2


def _request(*names: str) -> dict[str, Any]:
    prompt = render_tables(OLD, names, "How many?")
    return {"messages": prompt.messages, **prompt.extra_body}
