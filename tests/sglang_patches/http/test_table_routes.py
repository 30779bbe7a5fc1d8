# SPDX-License-Identifier: Apache-2.0
"""A server that finds the tables of a catalog in plain prompts: `depcache serve --tables FILE`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from depcache.client import DepCacheTransport
from depcache.tables import Catalog, Table
from tests.helpers.server import start_server
from tests.sglang_patches.conftest import ADMIN_KEY, FLAGS

pytest.importorskip("ahocorasick", reason="needs the extra `tables`")
pytestmark = pytest.mark.sglang

REFERENCES = {"artist": (), "album": ("artist",), "genre": (), "track": ("album", "genre")}
SHOP = Catalog(
    Table(name, f"CREATE TABLE {name} (\n\t{name}_id INT,\n\tname TEXT\n)", targets)
    for name, targets in REFERENCES.items()
)
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture(scope="module")
def client(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("server")
    SHOP.write(folder / "tables.jsonl")
    settings = {
        "DEPCACHE_TABLES": str(folder / "tables.jsonl"),
        "DEPCACHE_MATCH_TABLES": "true",
        "DEPCACHE_RECOGNISE": "auto",
    }
    log = folder / "log.txt"
    with start_server(model_path("llama_gqa"), *FLAGS, log=log, environment=settings) as client:
        yield client


@pytest.fixture(autouse=True)
def shop(client: httpx.Client) -> None:
    """The catalog, whatever a test before did to it, and an empty cache."""
    assert put(client, SHOP).status_code == 200
    flushed = client.post("/depcache/flush", params={"timeout": 60}, headers=ADMIN)
    assert flushed.status_code == 200


def put(client: httpx.Client, catalog: Catalog) -> httpx.Response:
    lines = "".join(json.dumps(table.to_json()) + "\n" for table in catalog)
    return client.post("/depcache/tables", content=lines, headers=ADMIN)


def write(*names: str, question: str = "How many?") -> str:
    """As LangChain writes tables."""
    tables = "\n\n".join(f"\n{SHOP[name].text}" for name in names)
    return f"Write SQLite. Use these tables alone:\n{tables}\n\nQuestion: {question}\nSQLQuery: "


def ask(client: httpx.Client, content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


def report(reply: dict[str, Any]) -> dict[str, Any]:
    return (reply["metadata"] or {})["depcache"]


def test_tables_are_found_and_reused_in_whatever_order_they_stand(client) -> None:
    cold = ask(client, write("artist", "album", "genre"))
    warm = ask(client, write("genre", "album", "artist"))
    assert report(cold)["recognised"] == report(warm)["recognised"] == {"tables": 3}
    assert report(cold)["missed"] > 0 and report(warm)["missed"] == 0
    assert report(cold)["tables"] == {"found": 3, "cached": 0, "absent_references": 0}
    assert report(warm)["tables"] == {"found": 3, "cached": 3, "absent_references": 0}
    assert report(warm)["differs"] == ["visibility", "placement"]
    # Its artist is left out, and so it sees another set.
    alone = report(ask(client, write("album", "genre")))
    assert alone["tables"] == {"found": 2, "cached": 1, "absent_references": 1}


def test_the_server_finds_what_the_transport_finds(client) -> None:
    content = write("track", "album", "genre", "artist")
    by_server = ask(client, content)
    transport = DepCacheTransport(tables=SHOP)
    with httpx.Client(transport=transport, base_url=client.base_url, timeout=60) as finding:
        by_client = ask(finding, content)
    assert report(by_client)["missed"] == 0 and "recognised" not in report(by_client)
    assert report(by_client)["tables"] == {"found": 4, "cached": 4, "absent_references": 0}
    assert text_of(by_client) == text_of(by_server)


PLAIN = [
    "Hello, who are you?",
    "How do I write CREATE TABLE artist?",
    "CREATE TABLE other (a INT);\nCREATE TABLE another (b INT);\n\nOk?",
]


@pytest.mark.parametrize("content", PLAIN)
def test_a_prompt_without_tables_of_the_catalog_is_untouched(client, served, content: str) -> None:
    reply, stock = ask(client, content), ask(served.client, content)
    assert "depcache" not in (reply["metadata"] or {})
    assert reply["choices"] == stock["choices"]
    assert reply["usage"]["prompt_tokens"] == stock["usage"]["prompt_tokens"]


def test_a_request_may_ask_not_to_be_searched(client, served) -> None:
    content = write("artist", "album")
    facts = "Facts:\nA -> r -> B\nB -> r -> C\n\nWho?"
    for text in (content, facts):
        reply = ask(client, text, custom_params={"depcache_match": False})
        assert "depcache" not in (reply["metadata"] or {})
        stock = ask(served.client, text)
        assert reply["usage"]["prompt_tokens"] == stock["usage"]["prompt_tokens"]
        assert text_of(reply) == text_of(stock)
    assert report(ask(client, facts))["recognised"] == {"arrows": 2}
    searched = ask(client, content, custom_params={"depcache_match": True, "mine": 1})
    assert report(searched)["recognised"] == {"tables": 2}


def test_every_route_of_a_plain_prompt_reads_it(client) -> None:
    text = write("artist", "album")
    params = {"max_new_tokens": 2, "temperature": 0}
    body = {"model": "m", "prompt": text, "max_tokens": 2, "temperature": 0}
    completion = client.post("/v1/completions", json=body).json()
    assert report(completion)["recognised"] == {"tables": 2}
    many = client.post("/generate", json={"text": [text, "Hello"], "sampling_params": params})
    with_tables, without = (each["meta_info"] for each in many.json())
    assert with_tables["depcache"]["missed"] == 0 and "depcache" not in without
    left = {**params, "custom_params": {"depcache_match": False}}
    for texts in (text, [text, "Hello"]):  # a batch is tokenized in another way
        plain = client.post("/generate", json={"text": texts, "sampling_params": left})
        assert plain.status_code == 200 and '"depcache"' not in plain.text
    shown = client.post("/depcache/explain", json={"text": text}).json()
    assert shown["missed"] == 0 and shown["trees"] == 1
    off = {"text": text, "sampling_params": {"custom_params": {"depcache_match": False}}}
    refused = client.post("/depcache/explain", json=off)
    assert refused.status_code == 400 and "no dependency data" in refused.json()["message"]


@pytest.mark.parametrize("value", ["no", 0, []])
def test_a_wrong_word_is_a_bad_request(client, served, value: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    said = {"custom_params": {"depcache_match": value}}
    for each in (client, served.client):  # of which one searches nothing
        for route, body in (
            ("/v1/chat/completions", {"model": "m", "messages": messages, **said}),
            ("/v1/completions", {"model": "m", "prompt": "Hello", **said}),
            ("/generate", {"text": "Hello", "sampling_params": said}),
            ("/generate", {"text": ["Hello", "Hi"], "sampling_params": said}),
        ):
            refused = each.post(route, json=body)
            assert refused.status_code == 400 and "depcache_match is" in refused.text, route
    assert text_of(ask(client, "Hello"))


def test_what_cannot_be_combined_with_tables_goes_on_as_it_came(client, served) -> None:
    params = {"max_new_tokens": 2, "temperature": 0}
    body = {"text": write("artist", "album"), "sampling_params": params, "return_logprob": True}
    body["logprob_start_len"] = 0  # in the context, whose rows are in no order
    reply, stock = (each.post("/generate", json=body).json() for each in (client, served.client))
    assert "depcache" not in reply["meta_info"]
    assert reply["output_ids"] == stock["output_ids"]


def test_the_catalog_is_shown_and_replaced(client) -> None:
    told = client.get("/depcache/tables", headers=ADMIN).json()
    assert told["match"] is True and told["digest"] == SHOP.digest
    assert {each["name"]: tuple(each["references"]) for each in told["tables"]} == REFERENCES
    other = Catalog([Table("genre", SHOP["genre"].text), Table("new", "CREATE TABLE new (a INT)")])
    replaced = put(client, other)
    assert replaced.status_code == 200 and replaced.json()["digest"] == other.digest
    content = write("genre", "artist").replace(SHOP["artist"].text, "CREATE TABLE new (a  INT)")
    assert report(ask(client, content))["recognised"] == {"tables": 2}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body holds no table"),
        (b"no json", "line 1 of the body is no JSON"),
        (b'{"name": "a", "text": "A"}\n{"name": "b"}', "line 2 of the body"),
        (b'{"name": "a", "text": "A"}\n{"name": "a", "text": "B"}', "two tables 'a'"),
        (b'{"name": "a", "text": "A", "references": "b"}', "references of table 'a'"),
        (b'{"tables": []}', "'tables' is no key of a table"),
        (b"\xff", "no UTF-8"),
        (b"[" * 100_000, "line 1 of the body"),
        (b" " * (16 * 2**20 + 1), "longer than the 16777216 bytes"),
    ],
)
def test_what_is_no_catalog_is_refused_and_the_old_one_stays(
    client, body: bytes, reason: str
) -> None:
    refused = client.post("/depcache/tables", content=body, headers=ADMIN)
    assert refused.status_code == 400
    message = refused.json()["message"]
    assert reason in message and "\n" not in message and len(message) < 300
    told = client.get("/depcache/tables", headers=ADMIN).json()
    assert told["digest"] == SHOP.digest


def test_a_server_without_settings_takes_a_catalog_for_requests_that_ask(served) -> None:
    empty = served.client.get("/depcache/tables", headers=ADMIN).json()
    assert empty["match"] is False
    assert put(served.client, SHOP).status_code == 200
    content = write("artist", "album", question="Who?")
    assert "depcache" not in (ask(served.client, content)["metadata"] or {})
    found = ask(served.client, content, custom_params={"depcache_match": True})
    assert report(found)["recognised"] == {"tables": 2}
