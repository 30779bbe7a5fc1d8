# SPDX-License-Identifier: Apache-2.0
"""An adapter is what its weights make of a model: all that changes this, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_patches.requests.adapters import Adapters, weights_digest

pytestmark = pytest.mark.sglang

MODULES = {"qkv_proj", "o_proj"}


class Layer(torch.nn.Module):
    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.weights = weights


def make_adapter() -> Any:
    """As SGLang's LoRAAdapter, as far as it is read."""
    adapter: Any = torch.nn.Module()
    adapter.scaling, adapter.config = 2.0, SimpleNamespace(r=4)
    adapter.layers = torch.nn.ModuleList(
        Layer({"a": torch.ones(4, 6, dtype=torch.bfloat16), "b": torch.full((6, 4), float(number))})
        for number in range(2)
    )
    adapter.embedding_layers = {"embed": torch.zeros(3)}
    adapter.added_tokens_embeddings = {}
    return adapter


def move_a_weight(adapter: Any) -> None:
    first, second = (layer.weights for layer in adapter.layers)
    second["c"] = first.pop("b")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one bit": lambda adapter: (
        adapter.layers[1].weights["a"].view(torch.uint8)[0, 0].bitwise_xor_(1)
    ),
    "a name": lambda adapter: adapter.layers[0].weights.update(
        c=adapter.layers[0].weights.pop("b")
    ),
    "a shape": lambda adapter: adapter.layers[0].weights.update(b=torch.zeros(4, 6)),
    "a type": lambda adapter: adapter.layers[0].weights.update(
        b=torch.zeros(6, 4, dtype=torch.int32)
    ),
    "another layer": move_a_weight,
    "the scaling": lambda adapter: setattr(adapter, "scaling", 3.0),
    "the rank": lambda adapter: setattr(adapter.config, "r", 8),
    "the embeddings": lambda adapter: adapter.embedding_layers["embed"].add_(1),
    "new tokens": lambda adapter: adapter.added_tokens_embeddings.update(new=torch.zeros(1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_what_it_adds_makes_another_adapter(change: str) -> None:
    adapter = make_adapter()
    before = weights_digest(adapter, MODULES)
    assert weights_digest(make_adapter(), MODULES) == before
    CHANGES[change](adapter)
    assert weights_digest(adapter, MODULES) != before


def test_neither_the_order_nor_the_memory_of_weights_matters() -> None:
    adapter = make_adapter()
    before = weights_digest(adapter, MODULES)
    for layer in adapter.layers:
        turned = reversed(list(layer.weights.items()))
        layer.weights = {name: tensor.t().contiguous().t() for name, tensor in turned}
    assert weights_digest(adapter, MODULES) == before


def test_a_server_that_leaves_modules_out_makes_another_adapter_of_it() -> None:
    adapter = make_adapter()
    assert weights_digest(adapter, MODULES) != weights_digest(adapter, {"o_proj"})


def test_an_adapter_that_is_loaded_anew_is_read_anew() -> None:
    adapters, manager = Adapters(), _Manager()
    adapters.follow(manager)
    manager.loras = {"one": make_adapter(), "two": make_adapter()}
    first = adapters.digest_of("one")
    assert adapters.digest_of("two") == first  # the same weights
    changed = copy.deepcopy(manager.loras["one"])
    CHANGES["one bit"](changed)
    manager.loras["one"] = changed
    assert adapters.digest_of("one") != first


def test_one_that_is_in_no_memory_is_like_no_other() -> None:
    adapters = Adapters()
    first = adapters.digest_of("one")
    assert adapters.digest_of("one") == first != adapters.digest_of("two")
    assert Adapters().digest_of("one") != first


class _Manager:
    def __init__(self) -> None:
        self.loras: dict[str, Any] = {}
        self.target_modules = MODULES
