# SPDX-License-Identifier: Apache-2.0
"""What the tests of the tiers draw from."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_patches.tiers.disk.tier import DiskTier
from tests.helpers.ends import SLOWEST_S


@pytest.fixture(autouse=True)
def _patient_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier gives up a call of its storage after five seconds; here only if a test says so."""
    monkeypatch.setitem(DiskTier.__init__.__kwdefaults__, "deadline_s", SLOWEST_S)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)
