# SPDX-License-Identifier: Apache-2.0
"""A machine without an accelerator gets a platform of plain torch; others keep SGLang's."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_accelerator_is_left_to_sglang(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sglang_patches.platform import activate

    monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: True)
    assert activate() is None


def test_without_one_the_platform_that_is_named_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sglang_patches.platform import activate

    for kind in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    importlib.import_module("sglang")  # as in every process; it asks for its platform
    module, _, name = (activate() or "").rpartition(".")
    platform = getattr(importlib.import_module(module), name)()
    assert platform.get_default_attention_backend() == "torch_native"
    if hasattr(platform, "get_kv_pool_cls"):  # 0.5.23: no answer means the stock pool
        assert platform.get_kv_pool_cls(kind="mha") is None
    else:
        assert platform.get_mha_kv_pool_cls().__name__ == "MHATokenToKVPool"
    assert platform.get_paged_allocator_cls().__name__ == "PagedTokenToKVPoolAllocator"


@pytest.mark.parametrize("setting", [3, 0])
def test_torch_uses_every_core_or_as_many_as_the_settings_say(setting: int) -> None:
    import torch

    from sglang_patches.cpu_platform import set_cpu_threads

    before = torch.get_num_threads()
    try:
        wanted = setting or len(os.sched_getaffinity(0))
        assert set_cpu_threads(setting) == torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("device", "is_it"), [("cpu", True), ("cuda:1", False)])
def test_a_runner_says_where_it_computes(device: str, is_it: bool) -> None:
    from sglang_patches.cpu_platform import is_cpu

    assert is_cpu(SimpleNamespace(device=device)) is is_it
