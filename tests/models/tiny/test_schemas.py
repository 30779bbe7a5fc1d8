# SPDX-License-Identifier: Apache-2.0
"""Made-up schemas and questions: SQL can read them, and every question has one answer."""

from __future__ import annotations

import random
import re
import sqlite3
from itertools import islice

import networkx as nx
import pytest

from depcache.tables.catalog import Catalog
from depcache.tables.declaration import Column, Declaration, ForeignKey
from depcache.tables.render import render_tables
from models.tiny.schemas import HELD_OUT_SHAPES, SHAPES, Schema, make_schema, schema_of
from models.tiny.sql_questions import MAX_JOINS, made_up_value, make_examples, make_questions

NUM = 120


def ask(schema: Schema, seed: int, number: int = 12):
    rng = random.Random(seed)
    return make_questions(rng, schema, number, lambda _, column: made_up_value(rng, column))


@pytest.fixture(scope="module")
def schemas() -> list[Schema]:
    return [make_schema(random.Random(seed), 4 + seed % 9) for seed in range(NUM)]


def test_a_database_takes_the_statements_and_the_answers(schemas: list[Schema]) -> None:
    counts = dict.fromkeys(range(MAX_JOINS + 1), 0)
    for seed, schema in enumerate(schemas):
        database = sqlite3.connect(":memory:")
        for table in schema.tables:
            database.execute(table.text)
        for question in ask(schema, seed):
            database.execute(question.sql)
            assert question.sql.count(" JOIN ") == question.num_joins
            counts[question.num_joins] += 1
        database.close()
    assert min(counts.values()) > 20, counts


def test_a_question_names_what_its_answer_shows_and_filters(schemas: list[Schema]) -> None:
    for seed, schema in enumerate(schemas):
        questions = ask(schema, seed)
        assert len({question.text for question in questions}) == len(questions)
        for question in questions:
            start = re.search(r"FROM (\w+)", question.sql)
            assert start and schema.nouns[start[1]] in question.text
            value = re.search(r"= ('\w+'|\d+)$", question.sql)
            assert value is None or value[1].strip("'") in question.text


def test_the_joins_are_the_only_shortest_ones(schemas: list[Schema]) -> None:
    for seed, schema in enumerate(schemas):
        graph = nx.Graph((each.source, each.target) for each in schema.references)
        for question in ask(schema, seed):
            tables = re.findall(r"(?:FROM|JOIN) (\w+)", question.sql)
            if len(tables) > 1:
                assert list(nx.all_shortest_paths(graph, tables[0], tables[-1])) == [tables]


def test_two_keys_to_one_table_are_told_apart_by_their_role(schemas: list[Schema]) -> None:
    told = 0
    for seed, schema in enumerate(schemas):
        roles = {each.column: each.role for each in schema.references if each.role}
        for question in ask(schema, seed):
            join = re.search(r"FROM (\w+) JOIN \w+ ON (\w+)\.(\w+) =", question.sql)
            if join and join[1] == join[2] and join[3] in roles:
                assert roles[join[3]] in question.text
                told += 1
    assert told > 5


def test_half_the_schemas_declare_their_references(schemas: list[Schema]) -> None:
    declared = sum(any(table.references for table in schema.tables) for schema in schemas)
    assert NUM / 4 < declared < 3 * NUM / 4
    for schema in schemas:
        links = {(each.source, each.target) for each in schema.references}
        for table in schema.tables:
            assert {(table.name, target) for target in table.references} <= links
            assert ("FOREIGN KEY" in table.text) == bool(table.references)


def test_names_that_are_held_out_are_drawn_for_no_other_schema() -> None:
    """But for words that are no words, and for what keys are called."""
    held_out = [make_schema(random.Random(1000 + seed), 8, is_held_out=True) for seed in range(20)]
    trained = [make_schema(random.Random(seed), 8) for seed in range(60)]

    def columns(found: list[Schema]) -> set[str]:
        names = {c.name for each in found for own in each.attributes.values() for c in own}
        return {name.replace("_", "").lower() for name in names}

    assert not columns(held_out) & columns(trained)
    shared = {noun for each in held_out for noun in each.nouns.values()}
    shared &= {noun for each in trained for noun in each.nouns.values()}
    assert len(shared) < 3, shared


def test_shapes_that_are_held_out_are_others() -> None:
    assert not set(SHAPES) & set(HELD_OUT_SHAPES)
    rings = 0
    for seed in range(20):
        schema = make_schema(random.Random(seed), 8, has_new_shapes=True)
        graph = nx.DiGraph((each.source, each.target) for each in schema.references)
        rings += not nx.is_directed_acyclic_graph(graph)
    assert 0 < rings < 20


def test_examples_of_a_schema_share_their_tables_and_come_again_alike() -> None:
    examples = list(islice(make_examples(5), 40))
    assert examples == list(islice(make_examples(5), 40))
    assert examples != list(islice(make_examples(6), 40))
    assert 3 < len({example.tables for example in examples}) < 20
    for example in examples[::8]:
        rendered = render_tables(Catalog(example.tables), None, example.question)
        assert not rendered.left_out


def test_a_real_schema_is_asked_about_what_is_no_key() -> None:
    people = Declaration("", "Home_Town", (Column("id"), Column("townName")), ("id",))
    orders = Declaration(
        "",
        "order list",
        (Column("nr", "INT"), Column("price of all", "REAL"), Column("town", "INT")),
        ("nr",),
        (ForeignKey(("town",), "", "Home_Town", ("id",)),),
    )
    schema = schema_of([people, orders])
    assert schema.nouns == {"Home_Town": "home town", "order list": "order list"}
    found = ask(schema, 1, 40)
    assert {question.num_joins for question in found} == {0, 1}
    for question in found:
        assert "nr" not in question.sql.replace('"', "").split(".")[1]
        assert question.num_joins == 0 or ('ON "order list".town = Home_Town.id' in question.sql)
    assert any("price of all" in question.text for question in found)


def test_nothing_is_asked_about_tables_without_columns() -> None:
    empty = Declaration("", "a", (Column("id"),), ("id",))
    assert ask(schema_of([empty]), 1) == []


def test_a_question_says_names_as_they_are_written(schemas: list[Schema]) -> None:
    for schema in schemas:
        for name, noun in schema.nouns.items():
            assert name == noun.replace(" ", "_") == name.lower()


def test_tables_may_have_names_that_are_no_words() -> None:
    plain = make_schema(random.Random(3), 12, pseudo_share=0.0, is_held_out=True)
    strange = make_schema(random.Random(3), 12, pseudo_share=1.0)
    assert not set(plain.nouns) & set(strange.nouns)
    assert len(set(strange.nouns)) == 12
