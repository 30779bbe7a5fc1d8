# SPDX-License-Identifier: Apache-2.0
"""Attention backends that understand dependency batches, by SGLang's own backend names.

A backend keeps the stock name: SGLang branches on it in many places. Other backends join
this table when they have an adapter here (FlashInfer is the next).
"""

from __future__ import annotations

from typing import Any

SUPPORTED_BACKENDS = ("torch_native",)


def register_backends() -> None:
    """Put our backends in the place of the stock ones. Safe to call twice."""
    from sglang.srt.layers.attention import attention_registry

    stock = attention_registry.ATTENTION_BACKENDS["torch_native"]
    if getattr(stock, "is_depcache", False):
        return

    def make_torch_native(runner: Any) -> Any:
        from sglang_patches.attention.torch_native import DependencyTorchBackend

        return DependencyTorchBackend(runner)

    make_torch_native.is_depcache = True
    attention_registry.register_attention_backend("torch_native")(make_torch_native)


def missing_backends() -> list[str]:
    """Names of the backends that are not in place in this process."""
    from sglang.srt.layers.attention import attention_registry

    return [
        name
        for name in SUPPORTED_BACKENDS
        if not getattr(attention_registry.ATTENTION_BACKENDS.get(name), "is_depcache", False)
    ]
