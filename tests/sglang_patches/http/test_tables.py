# SPDX-License-Identifier: Apache-2.0
"""Tables on the real server: computed once, reused whichever stand beside them."""

from __future__ import annotations

from itertools import count

import pytest

import depcache
from depcache.prompt.render import render_rows
from depcache.tables import Catalog, Table, render_tables

pytestmark = pytest.mark.sglang

_fresh = count()
REFERENCES = {"artist": (), "album": ("artist",), "genre": (), "track": ("album", "genre")}


def fresh_catalog() -> Catalog:
    """Tables that no test has sent before."""
    number = next(_fresh)
    return Catalog(
        Table(name, f"CREATE TABLE {name} (shop_{number} INT, {name}_name TEXT)", targets)
        for name, targets in REFERENCES.items()
    )


@pytest.fixture
def client(served):
    with depcache.Client(str(served.client.base_url), http_client=served.client) as client:
        yield client


def test_tables_in_another_order_are_all_reused(client) -> None:
    catalog = fresh_catalog()
    cold = client.ask_tables(catalog, ["track", "artist"], "How many tracks?", max_tokens=4)
    again = client.ask_tables(catalog, ["artist", "track"], "Who sings?", max_tokens=4)
    assert cold.depcache.missed > 0 and again.depcache.missed == 0
    assert again.depcache.shared == again.depcache.context_tokens == cold.depcache.context_tokens
    assert cold.depcache.differs == ("visibility", "placement")


def test_a_table_is_reused_whichever_stand_beside_it(client) -> None:
    catalog = fresh_catalog()
    client.ask_tables(catalog, ["genre"], "Which?", max_tokens=4)
    client.ask_tables(catalog, ["track"], "Which?", close=False, max_tokens=4)
    client.ask_tables(catalog, ["album"], "Which?", max_tokens=4)
    all_of_them = client.ask_tables(catalog, ["track"], "Which?", max_tokens=4)
    assert all_of_them.depcache.missed == 0


def test_tables_are_reused_wherever_they_stand_in_the_text(client) -> None:
    catalog = fresh_catalog()
    prompt = render_tables(catalog, None, "Which?")
    first = client.chat(prompt.messages, max_tokens=4, **prompt.extra_body).depcache
    # Their texts the other way round, as a program without a catalog may write them.
    turned = render_rows(
        [catalog[name].text for name in reversed(prompt.tables)],
        "And which now?",
        heading="Tables:",
        system=prompt.messages[0]["content"],
    )
    again = client.chat(turned.messages, max_tokens=4, **turned.extra_body).depcache
    assert first.missed > 0 and again.missed == 0
    assert again.context_tokens == first.context_tokens


def test_a_salt_keeps_tables_apart(client) -> None:
    catalog = fresh_catalog()
    for salt, is_cold in (("one", True), ("two", True), ("one", False)):
        reply = client.ask_tables(catalog, ["track"], "Which?", max_tokens=4, cache_salt=salt)
        assert (reply.depcache.missed > 0) == is_cold


def test_a_changed_table_is_computed_and_the_others_are_reused(client) -> None:
    catalog = fresh_catalog()
    first = client.ask_tables(catalog, None, "Which?", max_tokens=4).depcache
    tables = {table.name: table for table in catalog}
    tables["artist"] = Table("artist", tables["artist"].text.replace("TEXT", "VARCHAR(9)"))
    changed = client.ask_tables(Catalog(tables.values()), None, "Which?", max_tokens=4).depcache
    assert 0 < changed.missed < first.missed
