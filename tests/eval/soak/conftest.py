# SPDX-License-Identifier: Apache-2.0
"""The tokenizer whose tokens prompts are drawn from."""

from __future__ import annotations

from typing import Any

import pytest

from models.tiny.stages import kept_folder


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(kept_folder())
