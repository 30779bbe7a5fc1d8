# SPDX-License-Identifier: Apache-2.0
"""A server fuses only what was measured with its weights, where it is told to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depcache.config import Config
from depcache.errors import ConfigError
from sglang_patches.requests.evidence import set_evidence
from sglang_patches.tiers.disk.fingerprint import weights_digest
from tests.depcache.select.test_evidence import make_report
from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.fused_oracle import fuse
from tests.helpers.prompts import TreePrompt, random_tokens

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Path:
    return model_path("llama_gqa")


@pytest.fixture(scope="module")
def report(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says of this model that `first` at 15 % brings all back, and full reuse nothing."""
    file = tmp_path_factory.mktemp("evidence") / "report.json"
    told = make_report(200, recovered=True, weights=weights_digest(model))
    file.write_text(json.dumps(told))
    return file


@pytest.fixture(scope="module")
def engine(model: Path, report: Path) -> Iterator[RunningEngine]:
    with start_engine(model, environment={"DEPCACHE_FUSED_EVIDENCE": str(report)}) as running:
        yield running


def ask(engine: RunningEngine, **asked: Any) -> dict[str, Any]:
    rng = random.Random(5)
    rows = [(random_tokens(rng, 25), []) for _ in range(4)]
    prompt = TreePrompt(random_tokens(rng, 6), rows, random_tokens(rng, 4))
    engine.ask(prompt, 1)  # else they would be answered flat for another reason
    return engine.ask(fuse(prompt, **asked), 4)["meta_info"]["depcache"]


def test_what_was_measured_is_fused(engine: RunningEngine) -> None:
    told = ask(engine, recompute=0.15, select="first", pin=False)
    assert told["see"] == "fused"
    assert ask(engine, recompute=0.15, select="first")["see"] == "fused"  # pinned
    assert ask(engine, recompute=1.0)["see"] == "flat"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"recompute": 0.05, "select": "first"}, "nothing was measured of 'first'"),
        ({"recompute": 0.15, "select": "query"}, "nothing was measured of 'query'"),
        ({"recompute": 0.0}, "brought back 0.00 of the loss, less than 0.8"),
    ],
)
def test_all_else_is_answered_flat_or_refused_where_it_is_pinned(
    engine: RunningEngine, asked: dict[str, Any], reason: str
) -> None:
    told = ask(engine, **asked, pin=False)
    assert told["see"] == "flat" and reason in told["fallback_reason"]
    with pytest.raises(ValueError, match="this server fuses only what was measured") as raised:
        ask(engine, **asked, pin=True)
    assert reason in str(raised.value)


def test_a_server_of_other_weights_does_not_start(
    model: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEPCACHE_FUSED_EVIDENCE", raising=False)  # the engine's
    args: Any = SimpleNamespace(
        model_path=str(model), revision=None, download_dir=None, load_format="auto"
    )
    told = json.loads(report.read_text())
    told["weights"] = {"mine": "of another model"}
    other = report.with_name("other.json")
    other.write_text(json.dumps(told))
    try:
        with pytest.raises(ConfigError, match="about other weights"):
            set_evidence(args, Config(fused_evidence=str(other)))
        with pytest.raises(ConfigError, match="fused_min_recovery needs fused_evidence"):
            set_evidence(args, Config(fused_evidence=None, fused_min_recovery=0.5))
        args.model_path = "no/such-model"
        with pytest.raises(ConfigError, match="needs weights in files"):
            set_evidence(args, Config(fused_evidence=str(report)))
        args.model_path, args.load_format = str(model), "dummy"  # random weights are in no file
        with pytest.raises(ConfigError, match="needs weights in files"):
            set_evidence(args, Config(fused_evidence=str(report)))
    finally:
        args.load_format = "auto"
        set_evidence(args, Config(fused_evidence=str(report)))
