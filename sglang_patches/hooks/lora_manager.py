# SPDX-License-Identifier: Apache-2.0
"""Hook on the making of the manager of LoRA adapters: know their weights, and run without pinning.

Why: an adapter's KV may be used as long as its weights are the same, and only the manager has the
weights; a request has an id. And on a machine without an accelerator its memory cannot be pinned,
which SGLang's adapters ask for.
Unnecessary when SGLang gives requests a digest of their adapter, and asks whether it can pin.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.contract import AdapterManager
from sglang_patches.requests.adapters import ADAPTERS


def follow_adapters(manager: AdapterManager, *args: Any, **kwargs: Any) -> None:
    """Read the weights of this manager's adapters; the first requests come much later."""
    from sglang_patches.cpu_platform import is_plain_cpu, load_adapters_unpinned

    if is_plain_cpu():
        load_adapters_unpinned()
    ADAPTERS.follow(manager)


HOOKS = {"sglang.srt.lora.lora_manager.LoRAManager.__init__": ("BEFORE", follow_adapters)}
