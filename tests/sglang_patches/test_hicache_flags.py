# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache flags become settings of ours, and SGLang does not see them any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from depcache.config import load_config
from depcache.errors import ConfigError
from sglang_patches.hicache_flags import adopt_hicache_flags

pytestmark = pytest.mark.sglang


class Arguments(SimpleNamespace):
    """As ServerArgs after its defaults are resolved."""

    def override(self, source: str, **fields: Any) -> None:
        assert source == "depcache"
        self.__dict__.update(fields)


def arguments(**given: Any) -> Arguments:
    defaults = {
        "enable_hierarchical_cache": True,
        "hicache_size": 0,
        "hicache_ratio": 2.0,
        "hicache_write_policy": "write_through",
        "hicache_storage_backend": None,
        "hicache_storage_backend_extra_config": None,
    }
    return Arguments(**{**defaults, **given})


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that a test sets are gone after it."""
    for name in ("HOST_GB", "HOST_RATIO", "DISK_GB", "DISK_FOLDER", "DISK_BACKEND", "DISK_CONFIG"):
        monkeypatch.setenv(f"DEPCACHE_{name}", "")
        monkeypatch.delenv(f"DEPCACHE_{name}")
    monkeypatch.setenv("DEPCACHE_WRITE_POLICY", "")
    monkeypatch.delenv("DEPCACHE_WRITE_POLICY")


def test_a_size_and_a_write_policy_are_taken_over() -> None:
    given = arguments(hicache_size=12, hicache_write_policy="write_back")
    adopt_hicache_flags(given)
    config = load_config()
    assert (config.host_gb, config.host_ratio) == (12, 0)
    assert config.write_policy == "write_back"
    assert not given.enable_hierarchical_cache
    adopt_hicache_flags(given)  # once more changes nothing
    assert load_config() == config


def test_without_a_size_the_ratio_counts() -> None:
    adopt_hicache_flags(arguments(hicache_ratio=3.5))
    assert (load_config().host_gb, load_config().host_ratio) == (0, 3.5)


def test_settings_that_are_given_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPCACHE_HOST_GB", "5")
    monkeypatch.setenv("DEPCACHE_WRITE_POLICY", "write_back")
    adopt_hicache_flags(arguments(hicache_size=12))
    assert load_config().host_gb == 5
    assert load_config().write_policy == "write_back"


def test_a_storage_backend_is_the_disk_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPCACHE_DISK_GB", "9")
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", "/some/folder")
    given = arguments(hicache_size=1, hicache_storage_backend="file")
    adopt_hicache_flags(given)
    config = load_config()
    assert (config.disk_backend, config.disk_gb, config.disk_folder) == ("file", 9, "/some/folder")
    assert given.hicache_storage_backend is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"enable_hierarchical_cache": False}, "--enable-hierarchical-cache"),
        ({}, "DEPCACHE_DISK_GB"),
        ({"hicache_storage_backend": "hf3fs"}, "hf3fs"),
        ({"hicache_storage_backend": "dynamic"}, "module_path"),
    ],
)
def test_a_storage_that_cannot_work_is_refused_with_the_reason(
    given: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        adopt_hicache_flags(arguments(**{"hicache_storage_backend": "file", **given}))


def test_without_the_flags_nothing_happens() -> None:
    adopt_hicache_flags(arguments(enable_hierarchical_cache=False))
    assert (load_config().host_gb, load_config().host_ratio) == (0, 0)
