# SPDX-License-Identifier: Apache-2.0
"""Engines with a disk tier, one after another on the same folder: fixtures of several modules.

A module that uses them has a fixture `arguments` of module scope: further arguments of its engines.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import EngineCase, Served
from tests.helpers.engine import start_engine
from tests.helpers.judge import OracleReport
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens

MODEL = "llama_gqa"

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def start(
    arguments: dict[str, Any],
    model_path: Callable[[str], Any],
    oracle_of: Callable[[str], Any],
    oracle_report: OracleReport,
) -> Start:
    """Runs an engine on a folder, and leaves what is there when it ends."""

    @contextmanager
    def run(folder: Path, model: str = MODEL, **settings: Any) -> Iterator[Served]:
        case = EngineCase("disk-tier", model, "auto", chunk=64)
        environment = {
            "DEPCACHE_HOST_GB": "0.02",
            "DEPCACHE_DISK_GB": "0.1",
            "DEPCACHE_DISK_FOLDER": str(folder),
            "DEPCACHE_WRITE_POLICY": "write_through",
            "DEPCACHE_LOAD_POLICY": "always",  # computing a tiny model is faster
            **{f"DEPCACHE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        with start_engine(
            model_path(model), environment=environment, chunked_prefill_size=64, **arguments
        ) as engine:
            yield Served(case, engine, oracle_of(model), oracle_report)
            engine.check_conservation()

    return run


def disk_of(served: Served) -> dict[str, Any]:
    return served.engine.cache_state()["disk"]


def report_of(result: dict[str, Any]) -> dict[str, Any]:
    return result["meta_info"]["depcache"]


class Asked:
    """Prompts of every kind; what an engine stored of them is what the next one must find."""

    def __init__(self) -> None:
        rng = random.Random(11)
        self.system = random_tokens(rng, 9)
        self.trees = random_forest(rng, 6)
        self.tree = TreePrompt(self.system, self.trees, random_tokens(rng, 4))
        self.staggered = TreePrompt([], random_forest(rng, 4), random_tokens(rng, 4), "staggered")
        self.salted = TreePrompt(random_tokens(rng, 7), random_forest(rng, 4), [5, 6, 7])
        self.plain = plain(random_tokens(rng, 50))

    def ask(self, served: Served) -> None:
        served.ask(self.tree)
        served.ask(self.staggered)
        served.ask(self.salted, extra_key="a")
        served.ask(self.plain)


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def stored(start: Start, asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an engine that was asked and has ended."""
    folder = tmp_path_factory.mktemp("disk")
    with start(folder) as served:
        asked.ask(served)
        disk = served.engine.wait_until_stored()
        assert disk["stored_tokens"] == disk["cached_tokens"] > 0
        assert not disk["dropped"]
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    """A copy of it, to do harm to."""
    return shutil.copytree(stored, tmp_path / "copy")


def values_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))
