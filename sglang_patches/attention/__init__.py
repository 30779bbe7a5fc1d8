# SPDX-License-Identifier: Apache-2.0
"""Attention backends that understand dependency batches, by SGLang's own backend names.

A backend keeps the stock name: SGLang branches on it in many places. Other backends join
this table when they have an adapter here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from depcache.config import load_config
from sglang_patches.version import BACKEND_NAME

SUPPORTED_BACKENDS = ("torch_native", "flashinfer")

_stock: dict[str, Callable[[Any], Any]] = {}


def register_backends() -> None:
    """Put our backends in the place of the stock ones. Safe to call twice."""
    from sglang.srt.layers.attention import attention_registry

    for name in SUPPORTED_BACKENDS:
        stock = attention_registry.ATTENTION_BACKENDS[name]
        if stock is not _MAKERS[name]:
            _stock[name] = stock
            attention_registry.register_attention_backend(name)(_MAKERS[name])


def missing_backends() -> list[str]:
    """Names of the backends that are not in place in this process."""
    from sglang.srt.layers.attention import attention_registry

    return [
        name
        for name in SUPPORTED_BACKENDS
        if attention_registry.ATTENTION_BACKENDS.get(name) is not _MAKERS[name]
    ]


def _make_torch_native(runner: Any) -> Any:
    from sglang_patches.attention.torch_native import DependencyTorchBackend

    # For stock SGLang too: see `cpu_attention`.
    return DependencyTorchBackend(runner, load_config())


def _make_flashinfer(runner: Any) -> Any:
    if runner.server_args.radix_cache_backend != BACKEND_NAME:
        return _stock["flashinfer"](runner)
    from sglang_patches.attention.flashinfer import DependencyFlashInferBackend

    return DependencyFlashInferBackend(
        runner, load_config(), init_new_workspace=runner.init_new_workspace
    )


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "torch_native": _make_torch_native,
    "flashinfer": _make_flashinfer,
}
