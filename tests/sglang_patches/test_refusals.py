# SPDX-License-Identifier: Apache-2.0
"""Server flags that are not supported are refused at start, with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from depcache.errors import ConfigError

pytestmark = pytest.mark.sglang

BASE = {
    "page_size": 1,
    "schedule_policy": "fcfs",
    "radix_eviction_policy": "lru",
    "attention_backend": "torch_native",
}


@pytest.mark.parametrize(
    ("argument", "value", "flag"),
    [
        ("page_size", 16, "--page-size"),
        ("disable_radix_cache", True, "--disable-radix-cache"),
        ("speculative_algorithm", "EAGLE", "--speculative-algorithm"),
        ("disaggregation_mode", "decode", "--disaggregation-mode"),
        ("pp_size", 2, "--pp-size"),
        ("enable_dp_attention", True, "--enable-dp-attention"),
        ("enable_streaming_session", True, "--enable-streaming-session"),
        ("kv_events_config", "{}", "--kv-events-config"),
        ("tokenizer_worker_num", 2, "--tokenizer-worker-num"),
        ("schedule_policy", "dfs-weight", "--schedule-policy"),
        ("radix_eviction_policy", "slru", "--radix-eviction-policy"),
        ("attention_backend", "triton", "attention backend"),
        ("decode_attention_backend", "fa3", "attention backend"),
    ],
)
def test_an_unsupported_argument_is_named_with_a_reason(argument, value, flag) -> None:
    from sglang_patches.refusals import find_refusals, refuse_unsupported

    arguments = SimpleNamespace(**{**BASE, argument: value})
    reasons = find_refusals(arguments)
    assert len(reasons) == 1
    assert flag in reasons[0]
    assert str(value) in reasons[0]
    with pytest.raises(ConfigError, match="cannot start"):
        refuse_unsupported(arguments)


def test_a_disk_tier_needs_a_host_tier_and_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_DISK_GB", "7")
    (reason,) = find_refusals(SimpleNamespace(**BASE, tp_size=1))
    assert "disk_gb 7" in reason and "host_gb" in reason
    monkeypatch.setenv("DEPCACHE_HOST_RATIO", "2")
    assert find_refusals(SimpleNamespace(**BASE, tp_size=1)) == []
    (reason,) = find_refusals(SimpleNamespace(**BASE, tp_size=2))
    assert "--tp-size 2" in reason


def test_supported_arguments_are_not_refused() -> None:
    from sglang_patches.refusals import find_refusals

    assert find_refusals(SimpleNamespace(**BASE)) == []
    assert find_refusals(SimpleNamespace(**{**BASE, "schedule_policy": "lpm"})) == []


def test_prefills_in_cuda_graphs_are_refused_where_attention_is_flashinfers() -> None:
    from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig

    from sglang_patches.refusals import find_refusals

    graphs = CudaGraphConfig()
    arguments = SimpleNamespace(
        **{**BASE, "attention_backend": "flashinfer"}, cuda_graph_config=graphs
    )
    graphs.prefill.backend = Backend.BREAKABLE
    (reason,) = find_refusals(arguments)
    assert "breakable" in reason and "--disable-prefill-cuda-graph" in reason
    graphs.prefill.backend = Backend.DISABLED
    assert find_refusals(arguments) == []


def test_every_refused_argument_exists_in_this_sglang() -> None:
    """A name that SGLang does not know would never be refused."""
    import dataclasses

    from sglang.srt.server_args import ServerArgs

    from sglang_patches.refusals import _MUST_BE

    known = {field.name for field in dataclasses.fields(ServerArgs)}
    assert {name for name, *_ in _MUST_BE} <= known


def test_a_forbidden_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("SGLANG_RADIX_FORCE_MISS", "1")
    assert "SGLANG_RADIX_FORCE_MISS" in find_refusals(SimpleNamespace(**BASE))[0]


@pytest.mark.parametrize("order", ["ldm", "ldm_aged", "lsp"])
@pytest.mark.parametrize(
    ("argument", "value", "flag"),
    [
        ("schedule_policy", "lpm", "--schedule-policy lpm"),
        ("schedule_policy", "lof", "--schedule-policy lof"),
        ("enable_priority_scheduling", True, "--enable-priority-scheduling"),
    ],
)
def test_an_order_of_our_own_has_no_rival(
    order: str, argument: str, value: object, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_patches.refusals import find_refusals, refuse_unsupported

    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", order)
    arguments = SimpleNamespace(**{**BASE, argument: value})
    assert find_refusals(arguments) == [
        f"queue_order {order!r} would undo {flag}: leave one of them out"
    ]
    with pytest.raises(ConfigError, match=f"cannot start: queue_order '{order}'"):
        refuse_unsupported(arguments)
    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", "sglang")
    assert find_refusals(arguments) == []


def test_an_order_of_our_own_goes_with_fcfs(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", "ldm")
    arguments = SimpleNamespace(**BASE, enable_priority_scheduling=False)
    assert find_refusals(arguments) == []


def test_the_server_stops_at_once_and_says_why(model_path: Callable[[str], Path]) -> None:
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--device", "cpu"),
        *("--model-path", str(model_path("llama_gqa")), "--attention-backend", "torch_native"),
        *("--radix-cache-backend", "depcache", "--page-size", "16"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode != 0
    assert "--page-size 16 is not supported" in result.stderr
