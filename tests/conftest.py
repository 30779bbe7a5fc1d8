# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the whole suite: seeds, skips with a reason, and the tiny models."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure. CI draws the same examples every time.
_patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("local", **_patient)
settings.register_profile("ci", **_patient, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# As many tests as cores run at once, on tiny matrices: threads that wait for each other take the
# cores from the other tests. Before torch is imported, and for the servers that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DEPCACHE_CPU_THREADS", "1")

# Models come from this folder's helpers; nothing may be looked for on a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "gpu": None if _has_cuda() else "needs a CUDA device, and there is none",
        "sglang": None
        if importlib.util.find_spec("sglang")
        else "needs SGLang: install the extra `server`",
        "falkordb": None
        if importlib.util.find_spec("redislite") and importlib.util.find_spec("falkordb")
        else "needs the embedded FalkorDB: install the extra `falkordblite`",
    }
    for item in items:
        for name, reason in missing.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries draw from it


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """`model_path("llama_gqa")` is a folder with that tiny model; made once per session."""
    from tests.helpers.models import make_model

    folder = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = make_model(name, folder / name)
        return made[name]

    yield path
    shutil.rmtree(folder, ignore_errors=True)
