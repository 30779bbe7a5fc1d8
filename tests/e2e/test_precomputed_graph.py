# SPDX-License-Identifier: Apache-2.0
"""A small graph, precomputed: it outlives a restart on disk, and a change takes what it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from depcache.client import Client
from depcache.client.reply import ReuseReport
from depcache.graph import open_store
from depcache.precompute import PrecomputeSettings
from depcache.prompt.render import render
from tests.helpers.commands import run_json, serve_every_tier

pytestmark = pytest.mark.sglang

NUM_ENTITIES = 10
DELETED = "Acme\tis in\tOslo\n"
# A change at the ends of the deleted edge reaches Ann, but not those of Ulm. Names begin alike.
GRAPH = (
    "Ann\tknows\tBob\nAnn\tworks at\tAcme\n"
    + DELETED
    + "Oslo\tis in\tNorway\n"
    + "Ann Lee\tlives in\tUlm\nUlm\tis on\tDanube\nDanube\tflows into\tBlack Sea\n"
    + "Bob\tplays\tchess\n"
)
AFFECTED = ["Acme", "Ann", "Norway", "Oslo"]
SALT = "tenant"


@dataclass
class Work:
    """A folder with the graph, the states and what the servers write."""

    folder: Path
    model: Path

    @property
    def graph(self) -> Path:
        return self.folder / "facts.tsv"

    def state(self, salt: str | None = None) -> Path:
        return self.folder / f"{salt}.jsonl"

    def serve(self) -> AbstractContextManager[Client]:
        return serve_every_tier(self.model, self.folder)

    def run(self, client: Client, command: str, *arguments: object) -> dict[str, Any]:
        """What a command says with --json."""
        where = ("--graph", self.graph, "--server", client.base_url)
        return run_json(command, *where, *arguments)

    def precompute(self, client: Client, salt: str | None = None) -> dict[str, Any]:
        tenant = [] if salt is None else ["--salt", salt]
        arguments = ["--entities", "all", "--pruner", "none", "--state", self.state(salt)]
        return self.run(client, "precompute", *arguments, *tenant)

    def ask(self, client: Client, entity: str, salt: str | None = None) -> ReuseReport:
        paths = PrecomputeSettings(pruner="none").find_paths(open_store(self.graph), entity)
        assert paths
        fields = {} if salt is None else {"cache_salt": salt}
        report = client.ask(paths, "What?", max_tokens=1, **fields).depcache
        assert report is not None
        return report


@pytest.fixture(scope="module")
def work(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Precomputed for everyone and for one tenant, by a server that has ended."""
    work = Work(tmp_path_factory.mktemp("graph"), model_path("llama_gqa"))
    work.graph.write_text(GRAPH)
    with work.serve() as client:
        first = work.precompute(client)
        assert first["computed"] == first["entities"] == NUM_ENTITIES
        assert work.precompute(client)["requests"] == 0
        assert work.precompute(client, SALT)["computed"] == NUM_ENTITIES
        assert client.stats()["tiers"]["disk"]["waiting_tokens"] == 0
    return work


@pytest.fixture(scope="module")
def restarted(work: Work) -> Iterator[Client]:
    with work.serve() as client:
        yield client


def tokens_of(client: Client) -> dict[str, int]:
    return {name: tier["tokens"] for name, tier in client.stats()["tiers"].items()}


def test_after_a_restart_nothing_is_to_be_done_and_nothing_is_missed(
    work: Work, restarted: Client
) -> None:
    again = work.precompute(restarted)
    assert (again["requests"], again["resumed"], again["notes"]) == (0, NUM_ENTITIES, [])
    assert again["estimate"]["cached_tokens"] == again["estimate"]["tokens"]
    # All was on disk alone. A health check leaves a token or two.
    assert tokens_of(restarted)["device"] + tokens_of(restarted)["host"] < 5
    for entity in ("Ann", "Ann Lee"):
        report = work.ask(restarted, entity)
        assert report.missed == 0
        # The system comes from disk with the first of them.
        assert report.loaded > 0
        assert report.loaded == report.context_tokens - report.shared


def test_a_deleted_edge_takes_the_trees_it_was_in_from_every_tier(
    work: Work, restarted: Client
) -> None:
    for entity in ("Ann", "Oslo", "Bob", "Ann Lee"):  # so that they are in memory too
        assert work.ask(restarted, entity).missed == 0
    work.graph.write_text(GRAPH.replace(DELETED, ""))
    ends = ["--entity", "Acme", "--entity", "Oslo"]
    assert work.run(restarted, "invalidate", *ends, "--dry-run")["entities"] == AFFECTED
    nobody = work.run(restarted, "invalidate", *ends, "--salt", "nobody")
    assert nobody["tokens"] == {"device": 0, "host": 0, "disk": 0}
    before = tokens_of(restarted)
    found = work.run(restarted, "invalidate", *ends, "--state", work.state())
    assert (found["entities"], found["forgotten"], found["in_use"]) == (AFFECTED, 4, 0)
    after = tokens_of(restarted)
    assert found["tokens"]["device"] == before["device"] - after["device"] > 0
    assert found["tokens"]["host"] == before["host"] - after["host"] > 0
    # Those of the tenant too, which has not come back and is in no count yet.
    assert found["tokens"]["disk"] > before["disk"] - after["disk"] > 0

    explained = restarted.explain(render([("Bob", "plays", "chess")], "What?"))
    system_len = explained["table"][0]["start"]
    for salt in (None, SALT):
        for entity in ("Bob", "Ann Lee", "Danube"):
            assert work.ask(restarted, entity, salt).missed == 0
        for entity in AFFECTED:
            report = work.ask(restarted, entity, salt)
            # The system is left, and what "Ann Lee" has before the names part.
            assert report.reused <= system_len + 4 < report.context_tokens - 10


def test_what_was_invalidated_is_what_the_next_precompute_does(
    work: Work, restarted: Client
) -> None:
    again = work.precompute(restarted)
    assert (again["computed"], again["resumed"] + again["unchanged"]) == (4, NUM_ENTITIES - 4)
    assert work.precompute(restarted)["requests"] == 0
