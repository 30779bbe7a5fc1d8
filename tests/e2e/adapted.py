# SPDX-License-Identifier: Apache-2.0
"""An engine with LoRA adapters, each answer judged by an oracle that has the adapter merged in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.served import EngineCase, Served
from tests.helpers.adapters import make_adapter, merge_adapter
from tests.helpers.engine import RunningEngine, start_engine
from tests.helpers.judge import OracleReport
from tests.helpers.oracle import Oracle
from tests.helpers.prompts import TreePrompt, plain, random_forest, random_tokens

MODEL = "llama_gqa"
LAYOUTS = ("tree", "staggered", "sequential")
CASE = EngineCase("adapters", MODEL, "auto", chunk=64)


class Adapters:
    """Two adapters of one model, and an oracle for each and for the model alone."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folders = {
            name: make_adapter(model, folder / name, seed) for seed, name in enumerate("AB")
        }
        merged = {
            name: merge_adapter(model, adapter, folder / f"merged{name}")
            for name, adapter in self.folders.items()
        }
        self.oracles = {None: Oracle(model)} | {name: Oracle(at) for name, at in merged.items()}


class Adapted:
    """An engine with adapters, each answer judged by the oracle of its adapter."""

    def __init__(self, engine: RunningEngine, adapters: Adapters, report: OracleReport) -> None:
        self.engine = engine
        self._served = {
            name: Served(CASE, engine, oracle, report) for name, oracle in adapters.oracles.items()
        }

    def ask(self, prompt: TreePrompt, adapter: str | None, like: str | None = None) -> Any:
        """like  the adapter whose weights `adapter` has; it has its own if this is left out"""
        result = self.engine.ask(prompt, lora_path=adapter)
        if prompt.is_plain or prompt.layout == "tree":  # the others shift keys
            self._served[adapter if like is None else like].judge(prompt, result)
        return result

    def ask_together(self, prompts: list[TreePrompt], names: list[str | None]) -> list[Any]:
        """Prompts that arrive together, each with an adapter of its own."""
        results = self.engine.generate(prompts, lora_path=names)
        for prompt, name, result in zip(prompts, names, results, strict=True):
            self._served[name].judge(prompt, result)
        return results

    def load(self, name: str, folder: Path) -> None:
        reply = self.engine.run(
            self.engine.engine.tokenizer_manager.load_lora_adapter(_to_load(name, folder))
        )
        assert reply.success, reply.error_message

    def unload(self, name: str) -> None:
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        request = UnloadLoRAAdapterReqInput(lora_name=name)
        reply = self.engine.run(self.engine.engine.tokenizer_manager.unload_lora_adapter(request))
        assert reply.success, reply.error_message


def _to_load(name: str, folder: Path) -> Any:
    from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

    return LoadLoRAAdapterReqInput(lora_name=name, lora_path=str(folder))


@contextmanager
def start_adapted(
    adapters: Adapters, paths: dict[str, Path], report: OracleReport, **environment: str
) -> Iterator[Adapted]:
    """Run an engine with the adapters at these paths, by name."""
    with start_engine(
        adapters.model,
        environment={"DEPCACHE_ATTENTION_PLAN": "auto", **environment},
        chunked_prefill_size=CASE.chunk,
        enable_lora=True,
        lora_paths=[f"{name}={path}" for name, path in paths.items()],
        max_loras_per_batch=3,
    ) as engine:
        yield Adapted(engine, adapters, report)
        engine.check_conservation()


def prompts_of(rng: random.Random) -> dict[str, TreePrompt]:
    """A plain prompt, and one of the same facts in each layout."""
    parts = random_tokens(rng, 10), random_forest(rng, 4), random_tokens(rng, 6)
    return {"plain": plain(random_tokens(rng, 60))} | {
        layout: TreePrompt(*parts, layout) for layout in LAYOUTS
    }
