# SPDX-License-Identifier: Apache-2.0
"""The plugin is there once and of our release, or one sentence says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BOTH = ("sglang.srt.plugins", "sglang.srt.platforms")
# Names and releases -> the groups that their metadata names the plugin in.
INSTALLED = {
    "absent": ({("depcache", "2.0"): ()}, "plugin for SGLang is not installed"),
    "half": ({("depcache-sglang", "2.0"): BOTH[:1]}, "no entry point in sglang.srt.platforms"),
    "twice": (
        {("depcache", "1.0"): BOTH, ("depcache-sglang", "2.0"): BOTH},
        "installed twice, by depcache 1.0 and depcache-sglang 2.0; "
        "pip uninstall depcache depcache-sglang, then",
    ),
    "other release": (
        {("depcache", "2.0"): (), ("depcache-sglang", "1.0"): BOTH},
        "depcache-sglang 1.0 is not of the release of depcache 2.0",
    ),
    "removed with another": (
        {("depcache", "2.0"): (), ("depcache-sglang", "2.0"): BOTH},
        "depcache-sglang is installed, but the files of DepCache's plugin are gone; "
        "pip uninstall depcache-sglang, then",
    ),
    "in place": ({("depcache", "2.0"): (), ("depcache-sglang", "2.0"): BOTH}, None),
    "a checkout nobody installed": ({("depcache-sglang", "2.0"): BOTH}, None),
}
# Once all is imported, a folder with these distributions is the whole path.
PROGRAM = """
import sys
from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
sys.path[:] = [sys.argv[1]]
try:
    require_sglang()
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("case", INSTALLED)
def test_what_is_installed_is_judged_by_its_metadata(case: str, tmp_path: Path) -> None:
    distributions, words = INSTALLED[case]
    for name in ("sglang", "sglang_patches"):
        (tmp_path / name).mkdir()
        if name == "sglang" or case != "removed with another":
            (tmp_path / name / "__init__.py").touch()
    for (name, release), groups in distributions.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{release}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n"
        )
        points = "".join(f"[{group}]\ndepcache = sglang_patches.plugin:x\n" for group in groups)
        (folder / "entry_points.txt").write_text(points)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    if words is None:
        assert done.stdout == ""
    else:
        assert words in done.stdout
        assert "pip install ./sglang_patches" in done.stdout
        assert len(done.stdout.splitlines()) == 1
