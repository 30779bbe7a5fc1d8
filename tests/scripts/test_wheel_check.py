# SPDX-License-Identifier: Apache-2.0
"""What `make wheel-check` holds each extra to; the check itself takes minutes and an index."""

from __future__ import annotations

import tomllib
from pathlib import Path

from scripts.wheel_check import PROMISES

ROOT = Path(__file__).parents[2]


def test_every_extra_has_a_promise_and_ci_tries_each() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(PROMISES) == {"base", *project["optional-dependencies"]}
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    tried = [
        name
        for line in workflow.splitlines()
        if "wheel-check" in line
        for name in line.partition("--extras ")[2].replace('"', " ").split()
        if not name.startswith("--")
    ]
    assert sorted(tried) == sorted(PROMISES)


def test_a_promise_is_more_than_an_import() -> None:
    for extra, promise in PROMISES.items():
        assert promise.imports and promise.commands, extra
