# SPDX-License-Identifier: Apache-2.0
"""What a server says when its cache is built."""

from __future__ import annotations

import pytest

from depcache import gpu_checks
from sglang_patches.plugin import warn_unchecked


def said(caplog, device, tp_rank=0):
    caplog.clear()
    warn_unchecked(device, tp_rank)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.sglang
def test_a_server_on_a_gpu_says_once_what_has_not_passed_there(caplog, monkeypatch):
    (line,) = said(caplog, "cuda:0")
    assert "eval/gpu/CHECKS.md" in line
    assert said(caplog, "cpu") == []
    assert said(caplog, "cuda:1", tp_rank=1) == []
    monkeypatch.setattr(gpu_checks, "PASSED", frozenset(range(1, gpu_checks.NUM_CHECKS + 1)))
    assert said(caplog, "cuda") == []
