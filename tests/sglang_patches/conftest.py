# SPDX-License-Identifier: Apache-2.0
"""One HTTP server for the whole folder: starting one costs more than all its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from depcache.prompt.dep_prompt import DepPrompt
from tests.helpers.server import start_server

ADMIN_KEY = "the-admin-key"
FLAGS = ["--admin-api-key", ADMIN_KEY, "--grammar-backend", "outlines"]


@dataclass(frozen=True)
class Served:
    """A running server: its client, and the tokenizer of its model."""

    client: httpx.Client
    tokenizer: Any

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def prompt(self, paths: list[list[str]], task: str = "\nQuestion: who?", **keywords: Any):
        return DepPrompt.from_paths(
            paths, tokenizer=self.tokenizer, system="Facts:", task=task, **keywords
        )


@pytest.fixture(scope="package")
def served(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    from transformers import AutoTokenizer

    model = model_path("llama_gqa")
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with start_server(model, *FLAGS, log=log) as client:
        yield Served(client, AutoTokenizer.from_pretrained(model))
