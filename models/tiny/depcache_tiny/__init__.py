# SPDX-License-Identifier: Apache-2.0
"""The weights of depcache-tiny; `README.md` is their card."""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Returns the folder of the model, as HuggingFace and SGLang load it."""
    return Path(__file__).parent / "model"
