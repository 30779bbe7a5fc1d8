# SPDX-License-Identifier: Apache-2.0
"""What a LoRA adapter is: a digest of its weights, as SGLang holds them in memory.

SGLang knows an adapter by an id that is made of its name and its path, or at random. Files at a
path change while KV on disk stays, so the id says too little; and it says too much, since the
same weights under two names have the same KV.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import weakref
from typing import Any

import torch

from sglang_patches.contract import Adapter, AdapterManager
from sglang_patches.tiers.disk.value import DIGEST_BYTES


class Adapters:
    """The digests of this process's adapters, each computed when a request first needs it.

    Reading the weights takes about a second per GB, once for each time an adapter was loaded.
    """

    def __init__(self) -> None:
        self._manager: Any = lambda: None
        self._digests: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._unknown: dict[str, str] = {}

    def follow(self, manager: AdapterManager) -> None:
        """Look adapters up in SGLang's LoRAManager from now on."""
        self._manager = weakref.ref(manager)

    def digest_of(self, lora_id: str) -> str:
        """The digest of an adapter's weights, in hexadecimal.

        An adapter that is not in memory gets a name that nothing before or after this process has.
        """
        manager = self._manager()
        adapter = None if manager is None else manager.loras.get(lora_id)
        if manager is None or adapter is None:
            return self._unknown.setdefault(lora_id, uuid.uuid4().hex)
        digest = self._digests.get(adapter)
        if digest is None:
            digest = self._digests[adapter] = weights_digest(adapter, manager.target_modules)
        return digest


def weights_digest(adapter: Adapter, target_modules: set[str]) -> str:
    """A digest of all that decides what an adapter adds to a model, in hexadecimal.

    target_modules  those of the server: it leaves out what an adapter has for others
    """
    facts = {
        "scaling": adapter.scaling,
        "rank": adapter.config.r,
        "modules": sorted(target_modules),
    }
    state = hashlib.blake2b(json.dumps(facts).encode(), digest_size=DIGEST_BYTES)
    groups = [layer.weights for layer in adapter.layers]
    for weights in (*groups, adapter.embedding_layers, adapter.added_tokens_embeddings):
        state.update(len(weights).to_bytes(8, "little"))
        for name in sorted(weights):
            tensor = weights[name].detach().contiguous()
            state.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            # As bytes: numpy has no bfloat16.
            state.update(tensor.flatten().view(torch.uint8).numpy())
    return state.hexdigest()


ADAPTERS = Adapters()
"""Those of this process: SGLang has one manager of adapters in each."""
