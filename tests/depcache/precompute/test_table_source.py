# SPDX-License-Identifier: Apache-2.0
"""Tables as a source, against a server in memory: order, groups, resumption, and what is stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from depcache.errors import PromptError
from depcache.precompute import (
    Precomputer,
    PrecomputeReport,
    TableSource,
    find_stale,
    invalidate_tables,
    read_sets,
)
from depcache.precompute.settings import QUESTION
from depcache.tables import Catalog, Table, render_tables
from tests.depcache.precompute.fake import SYSTEM_LEN, FakeCache, refused


def make_catalog(**texts: str) -> Catalog:
    """Orders refer to customers and goods, customers to towns; two tables refer to each other."""
    references = {
        "orders": ("customers", "goods"),
        "customers": ("towns",),
        "goods": (),
        "towns": (),
        "hens": ("eggs",),
        "eggs": ("hens",),
    }
    return Catalog(
        Table(name, texts.get(name, f"TABLE {name}"), targets)
        for name, targets in references.items()
        if texts.get(name) != "gone"
    )


CATALOG = make_catalog()


def compute(server: FakeCache, catalog: Catalog = CATALOG, **options) -> PrecomputeReport:
    source = TableSource(catalog, **options.pop("source", {}))
    with server.client() as client:
        job = Precomputer(source, client, retry_delays_s=(), **options)
        return job.run(job.plan(), num_workers=1)


def requests(server: FakeCache, start: int = 0) -> list[list[str]]:
    """The names of the tables of each request, in its order."""
    return [
        [path[0].strip().removeprefix("TABLE ") for path in paths] for paths in server.sent[start:]
    ]


def test_what_is_referred_to_comes_first_and_all_share_a_request() -> None:
    server = FakeCache()
    report = compute(server)
    assert requests(server) == [["eggs", "hens", "goods", "towns", "customers", "orders"]]
    assert (report.num_computed, report.num_missed) == (6, SYSTEM_LEN + 6)
    assert report.to_json()["tables"] == 6


def test_closed_sets_are_sent_whole_where_requests_are_small() -> None:
    server = FakeCache()
    compute(server, request_tokens=SYSTEM_LEN + 3)
    closures = [set(CATALOG.references.closure([name])) for name in CATALOG.names]
    for names in map(set, requests(server)):
        assert names == set().union(*(each for each in closures if each <= names))
    assert len(requests(server)) > 1


def test_alone_no_table_stands_beside_what_it_refers_to() -> None:
    server = FakeCache()
    report = compute(server, source={"alone": True})
    [closed, *alone] = requests(server)
    assert len(closed) == 6
    assert sorted(map(tuple, alone)) == [("customers",), ("eggs",), ("hens",), ("orders",)]
    assert report.num_computed == 6 + 4


def test_sets_are_computed_as_they_are() -> None:
    server = FakeCache()
    compute(server, source={"sets": [["Orders", "goods"], ["towns", "customers"], ["orders"]]})
    assert requests(server)[-3:] == [["goods", "orders"], ["towns", "customers"], ["orders"]]
    with pytest.raises(PromptError, match="'order' is no table of the catalog: it has 'orders'"):
        TableSource(CATALOG, sets=[["order"]])


def test_a_request_is_what_a_question_is() -> None:
    server = FakeCache()
    compute(server, source={"system": "Be brief.", "fields": {"cache_salt": "tenant"}})
    asked = render_tables(CATALOG, None, "-", system="Be brief.")
    [body] = server.bodies
    assert body["cache_salt"] == "tenant"
    assert body["messages"] == asked.messages
    assert body["custom_params"] == asked.extra_body["custom_params"]


def test_a_table_that_two_databases_declare_alike_is_seen_by_those_of_both() -> None:
    people = "TABLE people"
    catalog = Catalog(
        [
            Table("zoo.people", people),
            Table("shop.people", people),
            Table("shop.orders", "TABLE orders", ("shop.people",)),
            Table("zoo.tickets", "TABLE tickets", ("zoo.people",)),
        ]
    )
    source = TableSource(catalog)
    for name in ("shop.orders", "zoo.tickets"):
        paths = source.find(name)
        assert paths is not None
        asked = render_tables(catalog, [name], QUESTION)
        assert source.make_request(paths)["custom_params"] == asked.extra_body["custom_params"]
        assert asked.extra_body["custom_params"]["depcache_outline"]["sees"] == [[], [0]]
    server = FakeCache()
    assert compute(server, catalog).num_computed == 4
    assert len(server.sent) == 1


def test_tables_that_are_written_alike_and_see_others_are_never_one_row() -> None:
    catalog = Catalog(
        [
            Table("zoo.people", "TABLE people", ("zoo.towns",)),
            Table("zoo.towns", "TABLE towns"),
            Table("shop.people", "TABLE people", ("shop.streets",)),
            Table("shop.streets", "TABLE streets"),
        ]
    )
    server = FakeCache()
    compute(server, catalog)
    sent = [set(names) for names in requests(server)]
    assert {"people", "towns"} in sent and {"people", "streets"} in sent
    assert not any({"towns", "streets", "people"} <= names for names in sent)


def test_a_changed_table_and_what_refers_to_it_is_computed_again(tmp_path: Path) -> None:
    server = FakeCache()
    state = tmp_path / "state"
    compute(server, state=state)
    changed = make_catalog(towns="TABLE towns, larger")
    report = compute(server, changed, state=state)
    assert (report.num_computed, report.num_unchanged) == (3, 3)
    assert requests(server, 1) == [["goods", "towns, larger", "customers", "orders"]]
    assert report.num_missed == 1  # in the tree of today only the table itself is another


def test_a_set_that_the_server_refuses_is_left_out_and_not_taken_apart() -> None:
    server = FakeCache()

    def refuse(paths):
        return refused() if any("orders" in path[0] for path in paths) else None

    server.on_chat = refuse
    report = compute(server)
    assert report.failures == {"refused": 1} and report.problems[0].startswith("orders: ")
    assert report.num_computed == 5


def test_invalidation_gives_up_what_changed_and_what_refers_to_it(tmp_path: Path) -> None:
    server = FakeCache()
    state = tmp_path / "state"
    compute(server, state=state)
    before = set(server.cached)
    new = make_catalog(customers="TABLE customers, larger", eggs="gone")
    found = find_stale(CATALOG, new, state=state)
    assert found.entities == ("customers", "eggs", "hens", "orders") and not server.invalidated
    with server.client() as client:
        found = invalidate_tables(CATALOG, new, client, state=state)
    gone = {path[0].strip().removeprefix("TABLE ") for path in before - server.cached}
    assert gone == {"customers", "eggs", "hens", "orders"}
    assert (found.num_named, found.num_gone, found.num_forgotten) == (2, 1, 4)
    assert found.tokens == {"device": 4}
    num_sent = len(server.sent)
    compute(server, state=state)
    assert requests(server, num_sent) == [["eggs", "hens", "goods", "towns", "customers", "orders"]]


def test_nothing_is_given_up_where_nothing_changed() -> None:
    server = FakeCache()
    with server.client() as client:
        found = invalidate_tables(CATALOG, make_catalog(), client)
    assert found.entities == () and not server.invalidated


def test_sets_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "sets.jsonl"
    file.write_text('["orders", "goods"]\n\n["towns"]\n')
    assert read_sets(file) == [["orders", "goods"], ["towns"]]
    for line in ("orders", '{"a": 1}', '["a", 1]', "[" * 10_000):
        file.write_text(f'["orders"]\n{line}\n')
        with pytest.raises(PromptError, match=r"line 2 of .* write a JSON list of the names"):
            read_sets(file)
