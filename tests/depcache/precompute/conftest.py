# SPDX-License-Identifier: Apache-2.0
"""The graph that most tests of precomputation are about."""

from __future__ import annotations

import pytest

from depcache.graph.networkx_store import NetworkXStore
from tests.depcache.precompute.make import make_store


@pytest.fixture
def store() -> NetworkXStore:
    return make_store()
