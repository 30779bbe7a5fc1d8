# SPDX-License-Identifier: Apache-2.0
"""A release that this package was not tried with is named, with the one to install."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sglang_patches import version
from sglang_patches.version import SUPPORTED_VERSIONS, installed_version, why_version_unsupported


@pytest.mark.sglang
def test_the_installed_release_is_a_supported_one() -> None:
    assert installed_version() in SUPPORTED_VERSIONS
    assert why_version_unsupported() is None


ROOT = Path(__file__).parents[2]


def test_the_supported_releases_are_those_that_install_and_have_pins() -> None:
    project = tomllib.loads((ROOT / "sglang_patches/pyproject.toml").read_text())["project"]
    [required] = [each for each in project["dependencies"] if each.startswith("sglang")]
    releases = [f"0.{minor}.{patch}" for minor in range(4, 8) for patch in range(40)]
    allowed = tuple(Requirement(required).specifier.filter(releases))
    assert allowed == SUPPORTED_VERSIONS
    pins = [f"constraints-{each}.txt" for each in SUPPORTED_VERSIONS[:-1]]
    assert sorted(each.name for each in ROOT.glob("constraints*.txt")) == [*pins, "constraints.txt"]
    for name, release in zip([*pins, "constraints.txt"], SUPPORTED_VERSIONS, strict=True):
        assert f"sglang=={release}" in (ROOT / name).read_text().splitlines()


def test_another_release_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "version", lambda name: "0.4.0")
    why = why_version_unsupported()
    assert why is not None
    assert "sglang 0.4.0 is installed" in why
    assert f"pip install 'sglang=={SUPPORTED_VERSIONS[-1]}'" in why


def test_no_release_at_all_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert installed_version() is None
    assert "sglang (none) is installed" in (why_version_unsupported() or "")
