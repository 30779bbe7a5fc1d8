# SPDX-License-Identifier: Apache-2.0
"""A prompt holds the tables that were asked for, what they refer to, and each as a row."""

from __future__ import annotations

from itertools import permutations

import pytest

from depcache.errors import PromptError
from depcache.prompt.outline import Outline
from depcache.tables import Catalog, Table, render_tables
from depcache.tables.seen import Sees
from tests.depcache.tables.shop import REFERENCES

CATALOG = Catalog(
    Table(name, f"CREATE TABLE {name} (id INT)", targets) for name, targets in REFERENCES.items()
)


def test_tables_are_rows_of_the_message_behind_what_they_refer_to() -> None:
    prompt = render_tables(CATALOG, ["track", "ALBUM"], "How many?")
    assert prompt.tables == ("artist", "album", "genre", "track")
    assert prompt.added == ("artist", "genre") and prompt.left_out == ()
    text = prompt.messages[-1]["content"]
    params = prompt.extra_body["custom_params"]
    outline = Outline.from_json(params["depcache_outline"])
    assert outline.pieces(text) == [f"\n\n{CATALOG[name].text}" for name in prompt.tables]
    assert outline.rows == (1,) * 4 and not outline.merge
    # What is seen by way of another is not named: track sees artist through album.
    assert outline.sees == ((), (0,), (), (1, 2)) and prompt.sees == "references"
    assert outline.absent == 0
    assert (params["depcache_version"], params["depcache_layout"]) == (2, "tree")
    assert text == f"Tables:{prompt.flat_text}\n\nQuestion: How many?"


def test_the_prompt_does_not_depend_on_the_order_of_names() -> None:
    prompts = {
        render_tables(CATALOG, names, "Q?").messages[-1]["content"]
        for names in permutations(["invoice_line", "track", "artist", "track"])
    }
    assert len(prompts) == 1


def test_without_closing_only_what_was_asked_for_is_there() -> None:
    prompt = render_tables(CATALOG, ["track", "album"], "Q?", close=False, system=None)
    assert (prompt.tables, prompt.added) == (("album", "track"), ())
    assert prompt.left_out == ("artist", "genre")
    assert len(prompt.messages) == 1
    for sees in ("references", "nothing", "component"):
        prompt = render_tables(CATALOG, ["track", "album"], "Q?", close=False, sees=sees)
        assert prompt.extra_body["custom_params"]["depcache_outline"]["absent"] == 2


def test_what_does_not_fit_is_not_added_and_that_is_said() -> None:
    prompt = render_tables(CATALOG, ["track", "album"], "Q?", max_tables=3)
    assert (prompt.tables, prompt.left_out) == (("album", "track"), ("artist", "genre"))
    assert len(render_tables(CATALOG, ["track"], "Q?", max_tables=4).tables) == 4
    assert len(render_tables(CATALOG, ["track", "album"], "Q?", max_tables=1).tables) == 2


def test_what_does_not_fit_in_tokens_is_not_added() -> None:
    texts = sum(len(CATALOG[name].text) for name in ("album", "artist"))
    for most, tables in ((texts, ("artist", "album")), (texts - 1, ("album",))):
        prompt = render_tables(CATALOG, ["album"], "Q?", max_tokens=most, count_tokens=len)
        assert prompt.tables == tables


def sees_of(*names: str, sees: Sees, catalog: Catalog = CATALOG) -> dict[str, list[str]]:
    """What each table of a prompt sees, by name, as the outline says it."""
    prompt = render_tables(catalog, names, "Q?", close=False, sees=sees)
    outline = Outline.from_json(prompt.extra_body["custom_params"]["depcache_outline"])
    return {
        prompt.tables[row]: [prompt.tables[other] for other in seen]
        for row, seen in enumerate(outline.sees)
        if seen
    }


def test_a_table_sees_what_it_refers_to_of_the_tables_in_the_prompt() -> None:
    assert sees_of("track", "genre", "artist", sees="nothing") == {}
    # Through album, which is not in the prompt, and is not named.
    assert sees_of("track", "genre", "artist", sees="references") == {"track": ["artist", "genre"]}
    assert sees_of("employee", sees="references") == {}  # a reference to itself is none
    assert sees_of("opening_hour", "genre", sees="references") == {}


def test_a_table_sees_all_before_it_in_its_component() -> None:
    # By way of the one above, which sees those above it.
    assert sees_of("track", "opening_hour", "genre", "artist", sees="component") == {
        "genre": ["artist"],
        "track": ["genre"],
    }
    assert sees_of("genre", "opening_hour", sees="component") == {}


def test_tables_in_a_cycle_see_each_other() -> None:
    catalog = Catalog([Table("b", "B", ("a",)), Table("a", "A", ("b",)), Table("c", "C", ("b",))])
    expected = {"a": ["b"], "b": ["a"], "c": ["b"]}
    assert sees_of("c", "b", "a", sees="references", catalog=catalog) == expected


def test_tables_that_are_written_alike_are_one_row() -> None:
    catalog = Catalog(
        [
            Table("a.t", "T", ("a.u",)),
            Table("b.t", "T"),
            Table("a.u", "U"),
            Table("w", "T", ("b.t",)),
        ]
    )
    prompt = render_tables(catalog, None, "Q?")
    outline = Outline.from_json(prompt.extra_body["custom_params"]["depcache_outline"])
    assert prompt.flat_text == "\n\nU\n\nT" and outline.sees == ((), (0,))


def test_no_names_mean_the_whole_schema() -> None:
    assert set(render_tables(CATALOG, None, "Q?").tables) == set(REFERENCES)


def test_a_reference_to_no_table_is_left_out_and_said() -> None:
    catalog = Catalog([Table("a", "A", ("a", "gone"))])
    assert render_tables(catalog, ["a"], "Q?").left_out == ("gone",)


@pytest.mark.parametrize(
    ("names", "question", "fields", "reason"),
    [
        ([], "Q?", {}, "no tables"),
        ("album", "Q?", {}, "one text"),
        (["albun"], "Q?", {}, "'album'"),
        ([3], "Q?", {}, "name of a table is 3"),
        (["album"], " ", {}, "question"),
        (["album"], None, {}, "question"),
        (["album"], "Q?", {"max_tables": 0}, "max_tables is 0"),
        (["album"], "Q?", {"max_tables": True}, "max_tables is True"),
        (["album"], "Q?", {"layout": "tre"}, "layout"),
        (["album"], "Q?", {"sees": "all"}, "sees is 'all': use one of nothing, references"),
        (["album"], "Q?", {"sees": None}, "sees is None"),
        (["album"], "Q?", {"max_tokens": 0, "count_tokens": len}, "max_tokens is 0"),
        (["album"], "Q?", {"max_tokens": 9}, "without count_tokens"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(names, question, fields, reason) -> None:
    with pytest.raises(PromptError, match=reason) as caught:
        render_tables(CATALOG, names, question, **fields)
    assert "\n" not in str(caught.value)


COLUMNS = Catalog(
    [
        *CATALOG,
        Table("album.title", "ALTER TABLE album ADD COLUMN title TEXT", ("album",)),
        Table("album.year", "ALTER TABLE album ADD COLUMN year INT", ("album",)),
        Table("track.title", "ALTER TABLE track ADD COLUMN title TEXT", ("track",)),
    ]
)


def test_a_column_sees_its_table_and_no_other_column() -> None:
    prompt = render_tables(COLUMNS, ["track.title", "album.*"], "Q?")
    assert prompt.tables == (
        *("artist", "album", "album.title", "album.year"),
        *("genre", "track", "track.title"),
    )
    assert prompt.added == ("artist", "album", "genre", "track")
    outline = Outline.from_json(prompt.extra_body["custom_params"]["depcache_outline"])
    assert outline.sees == ((), (0,), (1,), (1,), (), (1, 4), (5,))
    assert outline.absent == 0


def test_a_table_sees_the_same_whatever_columns_stand_there() -> None:
    def seen(names: list[str]) -> dict[str, list[str]]:
        prompt = render_tables(COLUMNS, names, "Q?")
        outline = Outline.from_json(prompt.extra_body["custom_params"]["depcache_outline"])
        rows = zip(prompt.tables, outline.sees, strict=True)
        return {name: [prompt.tables[row] for row in sees] for name, sees in rows}

    some, others = seen(["track", "album.title"]), seen(["track", "album.year"])
    assert some.pop("album.title") == others.pop("album.year") == ["album"]
    assert some == others
