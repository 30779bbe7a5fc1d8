# SPDX-License-Identifier: Apache-2.0
"""Settings that do not fit each other are refused where they are read."""

from __future__ import annotations

import pytest

from depcache.config import load_config
from depcache.errors import ConfigError


def test_a_share_of_what_nobody_looks_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPCACHE_RECOMPUTE", "0.05")
    with pytest.raises(ConfigError, match=r"recompute = 0\.05 .* recognise is off"):
        load_config()
    monkeypatch.setenv("DEPCACHE_RECOGNISE", "auto")
    assert load_config().recompute == 0.05


@pytest.mark.parametrize("share", ["-0.1", "1.1", "much"])
def test_a_share_outside_of_0_to_1_is_refused(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    monkeypatch.setenv("DEPCACHE_RECOGNISE", "auto")
    monkeypatch.setenv("DEPCACHE_RECOMPUTE", share)
    with pytest.raises(ConfigError, match="setting 'recompute'"):
        load_config()
