# SPDX-License-Identifier: Apache-2.0
"""Routes about a prompt, on a server with LoRA adapters: each adapter's cache is told by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.server import start_server
from tests.sglang_patches.conftest import Served

pytestmark = pytest.mark.sglang
pytest.importorskip("peft", reason="needs the extra `finetune`")

FACTS = [["Ada", "born in", "London"], ["Ada", "worked on", "Engine"]]


@pytest.fixture(scope="module")
def adapted(
    model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    from transformers import AutoTokenizer

    from tests.helpers.adapters import make_adapter

    model, folder = model_path("llama_gqa"), tmp_path_factory.mktemp("adapters")
    paths = [f"{name}={make_adapter(model, folder / name, seed)}" for seed, name in enumerate("AB")]
    flags = ("--enable-lora", "--max-loras-per-batch", "3", "--lora-paths", *paths)
    with start_server(model, *flags, log=folder / "log.txt") as client:
        yield Served(client, AutoTokenizer.from_pretrained(model))


def body(served: Served, adapter: Any) -> dict[str, Any]:
    ids, params = served.prompt(FACTS).to_wire()
    asked = {"input_ids": ids, "sampling_params": {"max_new_tokens": 2, "custom_params": params}}
    return asked if adapter is None else {**asked, "lora_path": adapter}


def test_each_adapter_is_told_what_it_has_cached(adapted: Served) -> None:
    asked = adapted.post("/generate", body(adapted, "A"))
    context = asked.json()["meta_info"]["depcache"]["missed"]
    assert context > 0
    for adapter, missed in (("A", 0), ("B", context), (None, context), ("", context)):
        told = adapted.post("/depcache/explain", body(adapted, adapter)).json()
        assert (told["missed"], told["shared"]) == (missed, context - missed), adapter
        told = adapted.post("/depcache/prefetch", body(adapted, adapter)).json()
        assert told["missing"] == missed, adapter


def test_a_chat_names_its_adapter_behind_the_model(adapted: Served) -> None:
    chat = {
        "model": "default:B",
        "messages": [{"role": "user", "content": "Facts:\nAda -> born in -> London\n\nWhere?"}],
        "max_tokens": 2,
        "custom_params": {
            "depcache_version": 1,
            "depcache_layout": "tree",
            "depcache_template": "path",
            "depcache_paths": '[["Ada", "born in", "London"]]',
        },
    }
    before = adapted.post("/depcache/explain", chat).json()
    assert adapted.post("/v1/chat/completions", chat).status_code == 200
    after = adapted.post("/depcache/explain", chat).json()
    assert before["missed"] > 0 and after["missed"] == 0
    alone = adapted.post("/depcache/explain", {**chat, "model": "default"}).json()
    assert alone["missed"] == before["missed"]


def test_an_adapter_that_is_not_there_is_named(adapted: Served) -> None:
    for route, name in product(("/depcache/explain", "/depcache/prefetch"), ("C", ["A"])):
        told = adapted.post(route, body(adapted, name))
        assert told.status_code == 400, (route, name)
        assert repr(name) in told.text
        assert name != "C" or "no adapter of this server, which has 'A, B'" in told.text
