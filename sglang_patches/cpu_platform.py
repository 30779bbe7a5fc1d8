# SPDX-License-Identifier: Apache-2.0
"""SGLang on plain torch on a CPU: the classes its platform interface asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Out-of-tree platform: torch attention, the stock KV pool and allocators."""

    _enum = PlatformEnum.OOT

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Plain torch for LoRA adapters and among ranks, whatever kernels were asked for."""
        if server_args.enable_lora or server_args.lora_paths:
            server_args.lora_backend = "torch_native"
        if server_args.tp_size > 1:
            server_args.disable_custom_all_reduce = True

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    if not hasattr(SRTPlatform, "get_kv_pool_cls"):  # with it, no answer means the stock pool

        def get_mha_kv_pool_cls(self) -> type:
            from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

            return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator


def is_plain_cpu() -> bool:
    """Whether SGLang runs on this platform in this process."""
    from sglang.srt.platforms import current_platform  # which is chosen when it is first asked for

    return isinstance(current_platform, TorchCpuPlatform)


def load_adapters_unpinned() -> None:
    """Let SGLang's LoRA code ask for pinned memory, and get ordinary memory.

    It pins what goes to a GPU. Without one torch refuses, and there is nothing to win.
    """
    from sglang.srt.lora import layers
    from sglang.srt.lora.backend import torch_backend

    for module in (layers, torch_backend):
        if not isinstance(module.torch, _Unpinned):
            module.torch = _Unpinned("torch")  # pyright: ignore[reportAttributeAccessIssue]
    torch.Tensor.pin_memory = lambda self, device=None: self  # it could only raise


class _Unpinned(ModuleType):
    """torch, whose factories take `pin_memory` and do nothing about it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        return _drop_pinning(found) if name in ("empty", "full", "tensor", "zeros") else found


def _drop_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return make(*args, **kwargs)

    return made


def set_cpu_threads(wanted: int, num_ranks: int = 1) -> int:
    """Let torch use so many threads; with 0 every core, or this rank's share of the cores.

    The scheduler process starts with few threads, which alone costs a factor on a CPU.
    """
    num_threads = wanted or max(1, len(os.sched_getaffinity(0)) // num_ranks)
    torch.set_num_threads(num_threads)
    return num_threads


def is_cpu(runner: Any) -> bool:
    """Whether a model runner computes on the CPU."""
    return torch.device(runner.device).type == "cpu"
