# SPDX-License-Identifier: Apache-2.0
"""Tables on the real server: computed once, reused whichever stand beside them."""

from __future__ import annotations

from itertools import count

import pytest

import depcache
from depcache.prompt.render import render_rows
from depcache.tables import Catalog, Table, render_tables
from tests.sglang_patches.conftest import ADMIN_KEY

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


def counted(found: int, cached: int | None = None, absent: int = 0) -> dict[str, int]:
    """What a reply says of so many tables; of all as cached where it is not said."""
    return {
        "found": found,
        "cached": found if cached is None else cached,
        "absent_references": absent,
    }


@pytest.fixture
def client(served):
    with depcache.Client(str(served.client.base_url), http_client=served.client) as client:
        yield client


@pytest.fixture
def admin(served):
    url = str(served.client.base_url)
    with depcache.Client(url, ADMIN_KEY, http_client=served.client) as client:
        yield client


def test_tables_in_another_order_are_all_reused(client) -> None:
    catalog = fresh_catalog()
    cold = client.ask_tables(catalog, ["track", "artist"], "How many tracks?", max_tokens=4)
    again = client.ask_tables(catalog, ["artist", "track"], "Who sings?", max_tokens=4)
    assert cold.depcache.missed > 0 and again.depcache.missed == 0
    assert again.depcache.shared == again.depcache.context_tokens == cold.depcache.context_tokens
    assert cold.depcache.differs == ("visibility", "placement")
    assert cold.depcache.tables == counted(4, 0)
    assert again.depcache.tables == counted(4, 4)


def test_a_table_that_sees_nothing_is_reused_whichever_stand_beside_it(client) -> None:
    catalog = fresh_catalog()
    fields = {"max_tokens": 4, "sees": "nothing"}
    client.ask_tables(catalog, ["genre"], "Which?", **fields)
    client.ask_tables(catalog, ["track"], "Which?", close=False, **fields)
    client.ask_tables(catalog, ["album"], "Which?", **fields)
    all_of_them = client.ask_tables(catalog, ["track"], "Which?", **fields).depcache
    assert all_of_them.missed == 0 and all_of_them.tables == counted(4, 4)


def test_a_table_is_reused_where_it_sees_the_same(client) -> None:
    catalog = fresh_catalog()
    client.ask_tables(catalog, ["track"], "Which?", max_tokens=4)
    for names in (["album"], ["genre", "artist"], ["track", "genre"]):
        found = client.ask_tables(catalog, names, "Which?", max_tokens=4).depcache
        assert found.missed == 0 and found.tables == counted(found.tables["found"])
    # Without what it refers to it is another table; what does not see it is not.
    alone = client.ask_tables(catalog, ["genre", "track"], "Which?", close=False, max_tokens=4)
    assert alone.depcache.missed > 0 and alone.depcache.tables == counted(2, 1, absent=1)


def test_a_table_sees_all_before_it_in_its_component(client) -> None:
    catalog = fresh_catalog()
    one = client.ask_tables(catalog, ["track"], "Which?", sees="component", max_tokens=4)
    other = client.ask_tables(catalog, ["track"], "Which?", max_tokens=4)
    assert one.depcache.tables == counted(4, 0)
    # The first, and what is below it alone, see the same either way; genre and track do not.
    assert other.depcache.tables == counted(4, 2)
    again = client.ask_tables(catalog, None, "And now?", sees="component", max_tokens=4)
    assert again.depcache.missed == 0


def test_a_join_is_reused_after_what_it_sees_is_gone(served, client, admin) -> None:
    catalog = fresh_catalog()
    cold = client.ask_tables(catalog, ["track"], "Which?", max_tokens=8)
    gone = admin.invalidate(render_tables(catalog, ["genre"], "Which?"))
    assert gone["tokens"]["device"] > 0 and gone["in_use"] == 0
    warm = client.ask_tables(catalog, ["track"], "Which?", max_tokens=8)
    assert warm.depcache.tables == counted(4, 3)
    assert warm.text == cold.text
    cache = served.client.get("/depcache/status").json()["cache"]
    assert cache["free_tokens"] + cache["cached_tokens"] == cache["capacity_tokens"]


def test_all_routes_read_joins(client, admin) -> None:
    catalog = fresh_catalog()
    prompt = render_tables(catalog, ["track"], "Which?")
    cold = client.explain(prompt)
    assert [row["parent"] for row in cold["table"]] == [-1, 0, -1, -1]
    client.chat(prompt.messages, max_tokens=1, **prompt.extra_body)
    warm = client.explain(prompt)
    assert cold["missed"] > 0 and warm["missed"] == 0
    gone = admin.invalidate(prompt)
    assert gone["in_use"] == 0
    # All that is theirs: what other tables begin with is theirs as well.
    assert client.explain(prompt)["missed"] == cold["missed"]


def test_what_a_table_sees_stays_where_the_ends_alone_are_given_up(client, admin) -> None:
    catalog = fresh_catalog()
    prompt = render_tables(catalog, ["track"], "Which?")  # a join of album and genre
    client.chat(prompt.messages, max_tokens=1, **prompt.extra_body)
    gone = admin.invalidate(prompt, ends_only=True)
    table = {row["start"]: row for row in client.explain(prompt)["table"]}
    own = [row for row in table.values() if row["missed"]]
    assert len(own) == 1 and gone["tokens"]["device"] == own[0]["missed"]
    assert client.explain(render_tables(catalog, ["album", "genre"], "Which?"))["missed"] == 0
    chain = render_tables(catalog, ["album"], "Which?")  # behind artist alone
    admin.invalidate(chain, ends_only=True)
    assert client.explain(chain)["missed"] > 0
    assert client.explain(render_tables(catalog, ["artist", "genre"], "Which?"))["missed"] == 0


def test_ends_only_is_yes_or_no(served) -> None:
    reply = served.client.post(
        "/depcache/invalidate?ends_only=maybe",
        json={},
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
    )
    assert reply.status_code == 400 and "ends_only is 'maybe'" in reply.text


def test_tables_are_reused_wherever_they_stand_in_the_text(client) -> None:
    catalog = fresh_catalog()
    prompt = render_tables(catalog, None, "Which?", sees="nothing")
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
