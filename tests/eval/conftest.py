# SPDX-License-Identifier: Apache-2.0
"""Servers that the measurements start are forked, where nobody looks at their process tree."""

from __future__ import annotations

import pytest

from tests.helpers.forked import ForkingSubprocess


@pytest.fixture
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of SGLang start without its imports, and end at once."""
    monkeypatch.setattr("depcache.serving.process.subprocess", ForkingSubprocess)
    monkeypatch.setattr("depcache.serving.process._STOP_S", 0.0)
