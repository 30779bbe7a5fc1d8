# SPDX-License-Identifier: Apache-2.0
"""The model that ships: small enough, its card says what it is, and it answers from the facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from depcache.client.client import Client
from depcache.demo.run import DEPCACHE, ask_all, make_passes
from depcache.demo.sample import load_questions, load_triples
from depcache.graph.retrieval import Retriever
from depcache.prompt.layout import LAYOUTS
from depcache.serving.tiny import TINY_NAME, resolve_model
from eval.workloads.graphs import hold
from models.tiny.stages import (
    BASE,
    FLAT,
    KEPT,
    RECIPE,
    SELF_ATTENTION,
    TINY,
    cycles_of,
    kept_folder,
)
from tests.helpers.server import start_server

MAX_BYTES = 28 * 2**20
MAX_SHIPPED_BYTES = 10 * 2**20
MAX_PARAMETERS = 8_000_000
MAX_TOKENS = 96


def test_the_weights_are_small_and_have_a_card() -> None:
    files = [file for file in RECIPE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    shipped = [file.stat().st_size for file in files if kept_folder(TINY) in file.parents]
    assert 0 < sum(shipped) <= MAX_SHIPPED_BYTES
    kept = {file.parent for file in files if file.suffix == ".safetensors"}
    assert kept == {FLAT, *(RECIPE / folder for folder in KEPT.values())}
    assert not cycles_of(RECIPE, BASE)  # `eval quality` would take it for what the two come from
    card = (RECIPE / "depcache_tiny" / "README.md").read_text(encoding="utf-8")
    for word in ("Apache-2.0", "CC BY 3.0", "MetaQA", "2Wiki", "seed", "steps", "loss"):
        assert word in card
    assert Path(resolve_model(TINY_NAME)).samefile(kept_folder(TINY))
    assert resolve_model("other/model") == "other/model"


@pytest.mark.sglang
@pytest.mark.parametrize("folder", [kept_folder(TINY), kept_folder(SELF_ATTENTION), FLAT])
def test_a_model_can_be_loaded(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in network.parameters()) <= MAX_PARAMETERS
    assert network.config.head_dim in (64, 128, 256)  # what FlashInfer's kernels take
    assert AutoTokenizer.from_pretrained(folder).chat_template


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    log = tmp_path_factory.mktemp("server") / "log"
    with (
        start_server(kept_folder(TINY), "--max-total-tokens", "65536", log=log) as http,
        Client(str(http.base_url)) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def passes() -> Any:
    retriever = Retriever(hold(load_triples()), pruner="words", max_hops=3, max_paths=30)
    return make_passes(load_questions(), retriever, seed=0)


@pytest.mark.sglang
def test_it_answers_with_the_facts_and_not_without(client: Client, passes: Any) -> None:
    answers = list(ask_all(client, passes, system=DEPCACHE, max_tokens=MAX_TOKENS))
    cold, warm = answers[:40], answers[40:]
    right = {a.asked.question.id for a in cold if a.asked.question.is_answered_by(a.text)}
    assert len(right) >= 35
    # The second pass is warm, in another order of questions and of facts.
    assert {a.asked.question.id for a in warm if a.asked.question.is_answered_by(a.text)} == right
    assert sum(answer.reused_tokens for answer in warm) > 0
    known = sum(
        question.is_answered_by(client.ask((), question.text, max_tokens=MAX_TOKENS).text)
        for question in load_questions()
    )
    assert known < 10


@pytest.mark.sglang
def test_it_reads_every_layout(client: Client, passes: Any) -> None:
    asked = passes[0][:12]
    for layout in LAYOUTS:
        right = sum(
            one.question.is_answered_by(
                client.ask(one.paths, one.question.text, layout=layout, max_tokens=MAX_TOKENS).text
            )
            for one in asked
        )
        assert right >= 9
