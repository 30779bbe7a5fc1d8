# SPDX-License-Identifier: Apache-2.0
"""Hooks that let several ranks run on a machine without an accelerator.

Why: SGLang gives each rank the cores of a NUMA node, of which there may be one, for kernels that
plain torch does not have; and 0.5.17 gives every group of ranks NCCL, which needs GPUs.
Unnecessary when SGLang asks the platform for both. 0.5.23 asks for the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind_no_threads(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Leave the threads to torch, which shares the cores by `set_cpu_threads`."""
    from sglang_patches.cpu_platform import is_plain_cpu

    return None if is_plain_cpu() else original(*args, **kwargs)


def use_no_nccl(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Groups of ranks talk by gloo alone."""
    from sglang_patches.cpu_platform import is_plain_cpu

    return original(*args, **(kwargs | {"use_pynccl": False} if is_plain_cpu() else kwargs))


HOOKS = {
    "sglang.srt.utils.numa_utils.init_threads_binding": ("AROUND", bind_no_threads),
    "sglang.srt.distributed.parallel_state.init_model_parallel_group": ("AROUND", use_no_nccl),
}
