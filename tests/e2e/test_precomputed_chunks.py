# SPDX-License-Identifier: Apache-2.0
"""A file of chunks, precomputed: fused requests over any of them, in any order, settle nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from depcache.client import Client
from depcache.client.reply import ReuseReport
from depcache.prompt.recompute import Recompute
from tests.helpers.commands import run_json
from tests.helpers.server import start_server

pytestmark = pytest.mark.sglang

PLACES = ("Oslo", "Ulm", "Warsaw", "Paris", "Vienna", "London", "Rome", "Bergen")
SALT = "tenant"


@dataclass
class Corpus:
    """A file of chunks, beside a server.

    texts  by id; those of a document follow one another
    """

    client: Client
    folder: Path
    texts: dict[str, str] = field(default_factory=dict[str, str])

    def write(self) -> Path:
        file = self.folder / "chunks.jsonl"
        rows = [
            {"id": name, "text": text, "document": name[0], "number": int(name[2:])}
            for name, text in self.texts.items()
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    def precompute(self, *arguments: str) -> dict[str, Any]:
        """What the command says with --json; one state for the same first two arguments."""
        state = self.folder / f"{'-'.join(arguments[:2])}.jsonl"
        options = ("--server", self.client.base_url, "--state", state, *arguments)
        return run_json("precompute", "--chunks", self.write(), *options)

    def ask(self, *names: str, is_behind: bool = False, **fields: Any) -> ReuseReport:
        """The report of a question about these chunks; each behind the one before it, or alone."""
        before = [f"{name[:2]}{int(name[2:]) - 1}" for name in names]
        reply = self.client.ask_chunks(
            [self.texts[name] for name in names],
            "Where?",
            recompute=Recompute(0.15, is_pinned=True),
            behind=[self.texts.get(name) for name in before] if is_behind else None,
            max_tokens=1,
            **fields,
        )
        assert reply.depcache is not None
        return reply.depcache


@pytest.fixture(scope="module")
def server(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with start_server(model_path("llama_gqa"), log=log) as http:
        yield http


@pytest.fixture
def corpus(server: httpx.Client, tmp_path: Path) -> Corpus:
    """Three documents of four chunks, and a server with an empty cache."""
    server.post("/flush_cache", params={"timeout": 60}).raise_for_status()
    rng = random.Random(3)
    texts = {
        f"{document}-{number}": f"He went to {rng.choice(PLACES)} in {1800 + 7 * number}, and to "
        f"{rng.choice(PLACES)} {number + 2} years later with {document}."
        for document in "abc"
        for number in range(4)
    }
    return Corpus(Client(str(server.base_url), http_client=server), tmp_path, texts)


def test_any_chunks_in_any_order_settle_nothing(corpus: Corpus) -> None:
    estimate = corpus.precompute("--estimate")["estimate"]
    assert (estimate["chunks"], estimate["cached_tokens"]) == (12, 0)
    first = corpus.precompute()
    assert first["computed"] == first["chunks"] == 12
    assert first["requests"] < 12
    assert corpus.precompute()["requests"] == 0
    rng = random.Random(5)
    for _ in range(6):
        names = rng.sample(list(corpus.texts), rng.randint(2, 6))
        report = corpus.ask(*names)
        assert (report.see, report.settled, report.missed) == ("fused", 0, 0)
    assert corpus.ask("a-1", "c-0", cache_salt=SALT).settled > 0  # nobody computed it for them


def test_of_a_changed_file_only_the_changed_chunk_is_computed(corpus: Corpus) -> None:
    before = corpus.precompute("--salt", SALT)["tokens_computed"]
    corpus.texts["b-2"] = "He stayed at home."
    again = corpus.precompute("--salt", SALT)
    assert (again["computed"], again["unchanged"], again["requests"]) == (1, 11, 1)
    assert 0 < again["tokens_computed"] < before / 4
    report = corpus.ask("b-2", "b-3", "a-0", "b-1", cache_salt=SALT)
    assert report.settled == report.missed == 0


def test_chunks_behind_the_one_before_settle_nothing(corpus: Corpus) -> None:
    assert corpus.precompute("--source", "previous")["computed"] == 12
    rng = random.Random(7)
    for _ in range(6):
        names = rng.sample(list(corpus.texts), rng.randint(2, 6))
        report = corpus.ask(*names, is_behind=True)
        assert (report.see, report.settled, report.missed) == ("fused", 0, 0)
        assert report.behind == sum(name[2] != "0" for name in names)
    # What has a chunk behind it is cached alone too; what ends a document is not.
    assert corpus.ask("a-1", "b-2").settled == 0
    report = corpus.ask("a-1", "b-3")
    assert report.settled > 0 and report.behind == 0


def test_behind_a_chunk_is_not_alone(corpus: Corpus) -> None:
    corpus.precompute()
    alone = corpus.ask("c-3", "a-2")
    behind = corpus.ask("c-3", "a-2", is_behind=True)
    assert (alone.settled, alone.behind) == (0, 0)
    assert behind.settled > 0 and behind.behind == 2
    assert corpus.ask("c-3", "a-2", is_behind=True).settled == 0
