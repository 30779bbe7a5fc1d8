# SPDX-License-Identifier: Apache-2.0
"""The package is a leaf: importing it brings in numpy and nothing of the projects around it."""

from __future__ import annotations

import subprocess
import sys

import flashinfer_masks


def test_import_brings_in_neither_depcache_nor_an_engine() -> None:
    program = (
        "import sys, flashinfer_masks, flashinfer_masks.reference;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert "flashinfer_masks" in loaded
    assert not loaded & {"depcache", "sglang", "sglang_patches", "torch", "flashinfer", "scipy"}


def test_public_names_exist() -> None:
    for name in flashinfer_masks.__all__:
        assert hasattr(flashinfer_masks, name)
