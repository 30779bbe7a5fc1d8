# SPDX-License-Identifier: Apache-2.0
"""Platform plugin: lets the official SGLang wheel run on a machine without an accelerator.

Entry point `depcache` in the group `sglang.srt.platforms`. SGLang's own CPU engine wants a
build of its own; torch's attention is enough for tests, demos and small models.
"""

from __future__ import annotations


def activate() -> str | None:
    """The platform class when this machine has no accelerator that SGLang knows, else None."""
    import torch

    if torch.cuda.is_available() or torch.xpu.is_available():
        return None
    return "sglang_patches.cpu_platform.TorchCpuPlatform"
