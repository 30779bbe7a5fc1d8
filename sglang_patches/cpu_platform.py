# SPDX-License-Identifier: Apache-2.0
"""SGLang on plain torch on a CPU: the classes its platform interface asks for."""

from __future__ import annotations

import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Out-of-tree platform: torch attention, the stock KV pool and allocators."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    if not hasattr(SRTPlatform, "get_kv_pool_cls"):  # with it, no answer means the stock pool

        def get_mha_kv_pool_cls(self) -> type:
            from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

            return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator


def set_cpu_threads(wanted: int) -> int:
    """Let torch use so many threads; with 0 every core that this process may run on.

    The scheduler process starts with few threads, which alone costs a factor on a CPU.
    """
    num_threads = wanted or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    return num_threads


def is_cpu(runner: Any) -> bool:
    """Whether a model runner computes on the CPU."""
    return torch.device(runner.device).type == "cpu"
