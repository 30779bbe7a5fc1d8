# SPDX-License-Identifier: Apache-2.0
"""What is missing is installed by the same command wherever it is said."""

from __future__ import annotations

import re
from pathlib import Path

import depcache
from depcache.install_hints import install_command, server_command

ROOT = Path(depcache.__file__).parent.parent


def test_an_extra_is_added_to_the_depcache_that_is_there() -> None:
    assert install_command() == "pip install depcache"
    assert install_command("graph") == "pip install 'depcache[graph]'"


def test_what_serves_is_installed_from_a_checkout_too() -> None:
    checkout = "(in a checkout of DepCache: pip install ./sglang_patches)"
    assert server_command() == f"pip install 'depcache[server]' {checkout}"
    assert (ROOT / "sglang_patches/pyproject.toml").is_file()


def test_every_extra_that_is_named_is_one() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    texts = [p.read_text(encoding="utf-8") for p in _sources()]
    named = {name for text in texts for name in re.findall(r"install_command\([\"'](\w+)", text)}
    assert {"graph", "embed", "server", "bench", "finetune"} <= named
    for name in named:
        assert re.search(rf"^{name} = \[", project, re.MULTILINE)


def test_no_other_place_says_how_to_install() -> None:
    wild = re.compile(r"(?<!re)install depcache|pip install '?[.d]|install the extra")
    found = [path for path in _sources() if wild.search(path.read_text(encoding="utf-8"))]
    assert found == [ROOT / "depcache" / "install_hints.py"]


def _sources() -> list[Path]:
    tops = ("depcache", "eval", "sglang_patches")
    return [path for top in tops for path in ROOT.glob(f"{top}/**/*.py")]
