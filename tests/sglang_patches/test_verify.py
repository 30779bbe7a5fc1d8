# SPDX-License-Identifier: Apache-2.0
"""A missing seam or hook is reported, never silent; installing twice is harmless."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers.ends import SLOWEST_S

pytestmark = pytest.mark.sglang

PROGRAM = """
import sglang.srt.entrypoints.http_server
from sglang.srt.plugins import load_plugins
from sglang_patches import plugin
from sglang_patches.hooks import ENGINE_HOOKS, front_hook_names, install_front_hooks
from sglang_patches.verify import inspect, require_in_place
{before}
load_plugins()
install_front_hooks()
{after}
report = inspect(ENGINE_HOOKS + front_hook_names())
print("\\n" + __import__("json").dumps([report.seams, report.hooks, report.problems]))
"""


def run(before: str = "", after: str = "", **variables: str) -> tuple[dict, dict, list[str]]:
    """Seams, hooks and problems as a fresh process finds them."""
    import os

    program = PROGRAM.format(before=before, after=after)
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
        env={**os.environ, **variables},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return tuple(json.loads(result.stdout.splitlines()[-1]))


def test_all_is_in_place_also_after_installing_twice() -> None:
    seams, hooks, problems = run(after="plugin.register(); install_front_hooks()")
    assert problems == []
    assert all(seams.values())
    assert all(hooks.values())


def test_a_missing_target_is_reported() -> None:
    _, hooks, problems = run(
        before="from sglang.srt.managers.scheduler import Scheduler\n"
        "del Scheduler._prefetch_kvcache"
    )
    missing = "sglang.srt.managers.scheduler.Scheduler._prefetch_kvcache"
    assert [target for target, applied in hooks.items() if not applied] == [missing]
    assert any(missing in problem for problem in problems)


def test_a_filtered_plugin_is_reported() -> None:
    seams, _, problems = run(SGLANG_PLUGINS="something-else")
    assert not seams["radix-cache backend"]
    assert any("SGLANG_PLUGINS" in problem for problem in problems)


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches import verify, version

    monkeypatch.setattr(version, "installed_version", lambda: "0.5.16")
    monkeypatch.setattr(verify, "installed_version", lambda: None)
    problems = verify.inspect().problems
    assert len(problems) == 1
    assert "0.5.16" in problems[0]
    assert all(release in problems[0] for release in version.SUPPORTED_VERSIONS)
