# SPDX-License-Identifier: Apache-2.0
"""Tokens of a served stream: what is counted is what whole prompts have, and what servers say."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depcache.serving.tiny import resolve_model
from eval.__main__ import main
from eval.serve.systems import Writer, get_system
from eval.serve.workloads import Request, ServeSpec, make
from eval.sets import SetError
from eval.tables.served import Prompt, Reader, Tables, compare_served, count_tables, count_tokens
from eval.workloads.graphs import Graphs
from tests.eval.tables.made import write_set

pytest.importorskip("transformers", reason="needs the extra `server`")
pytest.importorskip("depcache_tiny")

ROOT = Path(__file__).parents[3]
ORDERS, GOODS, BUYERS, TOWNS = (f"shop.{name}" for name in ("orders", "goods", "buyers", "towns"))
COUNTS = {"stream": 5, "warm": 3, "load": 0}
WORKLOAD = "lake:spider:2"
DEPCACHE, AS_THEY_COME, DECLARED = map(get_system, ("depcache", "sglang", "sglang-declared"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    write_set(folder, "spider")
    return folder


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader("depcache-tiny")


@pytest.fixture(scope="module")
def tables(folder: Path, reader: Reader) -> Tables:
    made = make(ServeSpec(WORKLOAD, 1), Graphs(folder))
    assert made.catalog is not None
    return Tables(made.catalog, {table.name: reader.table(table) for table in made.catalog})


def ask(reader: Reader, tables: Tables, question: str, *names: str) -> Prompt:
    chosen = tuple(tables.catalog[name] for name in names)
    declared = tuple(t.text for t in sorted(chosen, key=lambda table: table.name))
    return reader.prompt(Request(question, names, (), tables=chosen, declared=declared))


def report_of(folder: Path, rows: Sequence[Mapping[str, Any]], **changed: Any) -> dict[str, Any]:
    spec = ServeSpec(WORKLOAD, sum(COUNTS.values()))
    return {
        "rows": [{"workload": WORKLOAD, "failed": 0, **row} for row in rows],
        "precomputed": {WORKLOAD: []},
        "manifest": {
            "model": {"name": "30m"},
            "settings": {"counts": COUNTS, "paths": 30, "hops": 2, "seed": 0},
            "workloads": {WORKLOAD: make(spec, Graphs(folder)).digest()},
            **changed,
        },
    }


def test_a_first_prompt_is_computed_whole(reader: Reader, tables: Tables) -> None:
    prompt = ask(reader, tables, "Who?", ORDERS, TOWNS)
    # Another way to count: the message as the chat template writes it, in one piece.
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model("depcache-tiny"))
    messages = Writer(tokenizer, "path").write(AS_THEY_COME, prompt.request).fields["messages"]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    for system in (DEPCACHE, AS_THEY_COME, DECLARED):
        assert count_tokens(system, tables, [], [prompt]) == len(whole)


def test_what_was_asked_before_is_not_computed_again(reader: Reader, tables: Tables) -> None:
    first = ask(reader, tables, "Who?", ORDERS, TOWNS)
    other = ask(reader, tables, "Where?", TOWNS, ORDERS)
    len_of = {name: len(tokens) for name, tokens in tables.tokens.items()}
    # In declared order these are one context; a prefix cache has other tables first.
    for system in (DEPCACHE, DECLARED):
        assert count_tables(system, tables, [first], [other]) == 0
        assert 1 <= count_tokens(system, tables, [first], [other]) <= len(other.task)
    assert count_tables(AS_THEY_COME, tables, [first], [other]) == len_of[TOWNS] + len_of[ORDERS]
    assert count_tokens(AS_THEY_COME, tables, [first], [other]) > len(other.task)
    for system in (DEPCACHE, AS_THEY_COME, DECLARED):
        # The answer comes from the last token, so that one is computed.
        assert count_tokens(system, tables, [first], [first]) == 1


def test_a_table_that_sees_others_than_before_is_computed(reader: Reader, tables: Tables) -> None:
    alone = ask(reader, tables, "Who?", ORDERS)
    both = ask(reader, tables, "Who?", ORDERS, GOODS)
    lens = {name: len(tokens) for name, tokens in tables.tokens.items()}
    assert count_tables(DEPCACHE, tables, [alone], [both]) == lens[ORDERS] + lens[GOODS]
    # Computed ahead is a table with all it refers to.
    ahead = tables.catalog.references.closure([ORDERS])
    assert count_tables(DEPCACHE, tables, [], [alone], ahead) == lens[ORDERS]
    closed = ask(reader, tables, "Who?", ORDERS, GOODS, BUYERS, TOWNS)
    assert count_tables(DEPCACHE, tables, [], [closed], ahead) == 0
    assert count_tokens(DEPCACHE, tables, [], [closed], ahead) == len(closed.task)


def test_what_begins_like_a_cached_table_is_counted_by_token_alone(
    reader: Reader, tables: Tables
) -> None:
    goods, towns = (ask(reader, tables, "Who?", name) for name in (GOODS, TOWNS))
    new = count_tokens(DEPCACHE, tables, [goods], [towns]) - len(towns.task)
    assert 0 < new < len(tables.tokens[TOWNS]) == count_tables(DEPCACHE, tables, [goods], [towns])
    blocks = replace(AS_THEY_COME, engine="vllm")
    found = sum(map(len, (goods.head, *goods.tables.values(), goods.task))) // 16 * 16
    whole = count_tokens(blocks, tables, [], [goods])
    assert count_tokens(blocks, tables, [goods], [goods]) == whole - found


def test_a_row_has_what_is_counted_beside_what_is_said(folder: Path) -> None:
    said = [
        {"system": name, "phase": phase, "computed_tokens": 3000}
        for name in ("depcache", "sglang-declared")
        for phase in ("stream", "warm")
    ]
    rows = compare_served(report_of(folder, said), folder)
    assert [(row["system"], row["phase"], row["questions"]) for row in rows] == [
        (name, phase, num)
        for name in ("depcache", "sglang-declared")
        for phase, num in (("stream", 5), ("warm", 3))
    ]
    for row in rows:
        assert row["set"] == WORKLOAD and row["served"] == 3000 / row["questions"]
        assert 0 <= row["computed"] <= row["context"] and row["by_token"] <= row["prefill"] + 0.1
        assert row["off"] == pytest.approx(row["served"] / row["by_token"] - 1, rel=0.01)


def test_what_was_computed_ahead_is_a_row(folder: Path, tables: Tables) -> None:
    report = report_of(folder, [])
    report["precomputed"] = {WORKLOAD: [{"system": "depcache", "tokens": 100}] * 2}
    [row] = compare_served(report, folder)
    whole = sum(map(len, tables.tokens.values()))
    assert (row["phase"], row["served"]) == ("ahead", 100)
    assert 0 < row["computed"] == row["context"] <= whole
    # All tables begin with CREATE TABLE, and some see the same.
    assert row["computed"] < row["by_token"] < row["prefill"]


def test_left_out_is_what_was_not_all_answered_or_is_not_counted(folder: Path) -> None:
    said = [
        {"system": "vllm", "phase": "stream", "computed_tokens": 9, "failed": 2},
        {"system": "depcache", "phase": "load", "computed_tokens": 9},
        {"system": "depcache-sequential", "phase": "warm", "computed_tokens": 9},
        {"system": "depcache-fused-15", "phase": "warm", "computed_tokens": 9},
        {"system": "norag", "phase": "warm", "computed_tokens": 9},
    ]
    assert compare_served(report_of(folder, said), folder) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"workloads": {WORKLOAD: "another"}}, "have the digest another, and the data gives"),
        ({"model": {"name": "my-model"}}, "the tokenizer of 'my-model' is not known here"),
    ],
)
def test_another_stream_is_not_compared(folder: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(SetError, match=says):
        compare_served(report_of(folder, [], **changed), folder)


@pytest.mark.skipif("SQL_DATA" not in os.environ, reason="set SQL_DATA to the folder of the sets")
@pytest.mark.parametrize("name", ["serve_tables", "serve_tables_closed", "serve_tables_whole"])
def test_what_servers_said_of_the_public_sets_is_what_is_counted(name: str) -> None:
    report = json.loads((ROOT / "eval" / "results" / f"{name}.json").read_text())
    rows = compare_served(report, Path(os.environ["SQL_DATA"]))
    assert len(rows) >= 5
    off = {(row["system"], row["phase"]): row["off"] for row in rows}
    if name == "serve_tables_closed":
        # Computed before tables that two databases declare alike were told apart.
        assert off.pop(("depcache", "precomputed")) > 0.3
    # Rows of one request are computed whole, whatever they begin with.
    assert 0 <= off.pop(("depcache", "ahead")) < 0.01
    assert all(abs(each) < 0.005 for each in off.values()), off


@pytest.mark.sglang
@pytest.mark.usefixtures("forked_servers")
def test_real_servers_compute_what_is_counted(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    report, joined = tmp_path / "serve.json", tmp_path / "tables.json"
    words = ["serve", "--data", str(folder), "--model", "depcache-tiny", "--rounds", "1"]
    words += ["--workloads", WORKLOAD, "--systems", "depcache", "sglang-declared"]
    words += ["--pool-tokens", "20000"]
    words += ["--stream", "6", "--warm", "6", "--load", "0", "--json", str(report)]
    assert main(words) == 0
    words = ["tables", "--tokens", "--quick", "--data", str(folder), "--join", str(report)]
    write_set(folder, "bird")
    assert main([*words, "--json", str(joined)]) == 0
    found = json.loads(joined.read_text())
    rows = [row for row in found["tokens"] if "served" in row]
    [ahead] = [row for row in rows if row["phase"] == "ahead"]
    rows.remove(ahead)
    assert ahead["by_token"] <= ahead["served"] <= ahead["prefill"]
    assert len(rows) == 3 + 2
    for row in rows:
        # Requests that warm a server up leave the first tokens of a chat in its cache.
        assert row["served"] == pytest.approx(row["by_token"], abs=5 / row["questions"])
    assert {row["system"] for row in found["ttft"]} == {row["system"] for row in rows}
    assert found["ratios"][WORKLOAD]["ttft_warm_vs_sglang_declared"] > 0
