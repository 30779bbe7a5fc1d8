# SPDX-License-Identifier: Apache-2.0
"""Server flags that are not supported are refused at start, with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from depcache.config import load_config
from depcache.errors import ConfigError
from tests.helpers.arguments import server_arguments
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.conftest import ADMIN_KEY, Served

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
    reasons = find_refusals(arguments, load_config())
    assert len(reasons) == 1
    assert flag in reasons[0]
    assert str(value) in reasons[0]
    with pytest.raises(ConfigError, match="cannot start"):
        refuse_unsupported(arguments, load_config())


def test_a_disk_tier_needs_a_host_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_DISK_GB", "7")
    (reason,) = find_refusals(SimpleNamespace(**BASE, tp_size=1), load_config())
    assert "disk_gb 7" in reason and "host_gb" in reason
    monkeypatch.setenv("DEPCACHE_HOST_RATIO", "2")
    assert find_refusals(SimpleNamespace(**BASE, tp_size=1), load_config()) == []


UNTRIED = {
    "ranks": ({"tp_size": 2, "device": "cuda"}, {}, "--tp-size 2 on cuda"),
    "adapters": ({"enable_lora": True, "device": "cuda"}, {}, "LoRA"),
    "adapters by path": ({"lora_paths": ["a=b"], "device": "cuda"}, {}, "LoRA"),
    "simm": ({}, {"DISK_BACKEND": "simm"}, "disk_backend 'simm'"),
    "mori": ({}, {"DISK_BACKEND": "mori"}, "disk_backend 'mori'"),
}


@pytest.mark.parametrize("case", UNTRIED)
def test_what_was_never_run_needs_a_word_of_the_user(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_patches.refusals import find_refusals

    arguments, variables, named = UNTRIED[case]
    for name, value in variables.items():
        monkeypatch.setenv(f"DEPCACHE_{name}", value)
        monkeypatch.setenv("DEPCACHE_HOST_GB", "1")
        monkeypatch.setenv("DEPCACHE_DISK_GB", "1")
    given = SimpleNamespace(**BASE, **arguments)
    (reason,) = find_refusals(given, load_config())
    assert reason.startswith(named)
    assert "has never been run with DepCache: set experimental to try it, or " in reason
    monkeypatch.setenv("DEPCACHE_EXPERIMENTAL", "1")
    assert find_refusals(given, load_config()) == []


def test_a_storage_that_nothing_is_kept_in_needs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    given = SimpleNamespace(**BASE, enable_lora=False, lora_paths=["a=b"])
    monkeypatch.setenv("DEPCACHE_DISK_BACKEND", "mori")
    assert find_refusals(given, load_config()) == []


def test_mooncake_needs_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    for name, value in {"DISK_BACKEND": "mooncake", "HOST_GB": "1", "DISK_GB": "1"}.items():
        monkeypatch.setenv(f"DEPCACHE_{name}", value)
    assert find_refusals(SimpleNamespace(**BASE, tp_size=1), load_config()) == []


@pytest.mark.parametrize("disk_gb", ["0", "1"])
def test_several_ranks_on_a_cpu_need_no_word(disk_gb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_HOST_GB", "1")
    monkeypatch.setenv("DEPCACHE_DISK_GB", disk_gb)
    assert find_refusals(SimpleNamespace(**BASE, tp_size=2, device="cpu"), load_config()) == []


@pytest.mark.parametrize("disk_gb", ["0", "1"])
def test_adapters_on_a_cpu_need_no_word(disk_gb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_HOST_GB", "1")
    monkeypatch.setenv("DEPCACHE_DISK_GB", disk_gb)
    arguments = SimpleNamespace(**BASE, enable_lora=True, device="cpu")
    assert find_refusals(arguments, load_config()) == []


def test_supported_arguments_are_not_refused() -> None:
    from sglang_patches.refusals import find_refusals

    assert find_refusals(SimpleNamespace(**BASE), load_config()) == []
    assert find_refusals(SimpleNamespace(**{**BASE, "schedule_policy": "lpm"}), load_config()) == []


def test_prefills_in_cuda_graphs_are_refused_where_attention_is_flashinfers() -> None:
    from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig

    from sglang_patches.refusals import find_refusals

    graphs = CudaGraphConfig()
    arguments = SimpleNamespace(
        **{**BASE, "attention_backend": "flashinfer"}, cuda_graph_config=graphs
    )
    graphs.prefill.backend = Backend.BREAKABLE
    (reason,) = find_refusals(arguments, load_config())
    assert "breakable" in reason and "--disable-prefill-cuda-graph" in reason
    graphs.prefill.backend = Backend.DISABLED
    assert find_refusals(arguments, load_config()) == []


def test_every_refused_argument_exists_in_this_sglang() -> None:
    """A name that SGLang does not know would never be refused."""
    from sglang_patches.refusals import _MUST_BE

    known = server_arguments()
    assert {name for name, *_ in _MUST_BE} | {"tp_size", "enable_lora", "lora_paths"} <= known


def test_a_forbidden_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("SGLANG_RADIX_FORCE_MISS", "1")
    assert "SGLANG_RADIX_FORCE_MISS" in find_refusals(SimpleNamespace(**BASE), load_config())[0]


@pytest.mark.parametrize(
    ("argument", "value", "flag"),
    [
        ("schedule_policy", "lpm", "--schedule-policy lpm"),
        ("schedule_policy", "lof", "--schedule-policy lof"),
        ("enable_priority_scheduling", True, "--enable-priority-scheduling"),
    ],
)
def test_an_order_of_our_own_has_no_rival(
    argument: str, value: object, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_patches.refusals import find_refusals, refuse_unsupported

    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", "lsp")
    arguments = SimpleNamespace(**{**BASE, argument: value})
    assert find_refusals(arguments, load_config()) == [
        f"queue_order 'lsp' would undo {flag}: leave one of them out"
    ]
    with pytest.raises(ConfigError, match="cannot start: queue_order 'lsp'"):
        refuse_unsupported(arguments, load_config())
    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", "sglang")
    assert find_refusals(arguments, load_config()) == []


def test_an_order_of_our_own_goes_with_fcfs(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_patches.refusals import find_refusals

    monkeypatch.setenv("DEPCACHE_QUEUE_ORDER", "lsp")
    arguments = SimpleNamespace(**BASE, enable_priority_scheduling=False)
    assert find_refusals(arguments, load_config()) == []


def test_the_server_stops_at_once_and_says_why(model_path: Callable[[str], Path]) -> None:
    command = [
        *(sys.executable, "-m", "sglang.launch_server", "--device", "cpu"),
        *("--model-path", str(model_path("llama_gqa")), "--attention-backend", "torch_native"),
        *("--radix-cache-backend", "depcache", "--page-size", "16"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SLOWEST_S)
    assert result.returncode != 0
    assert "--page-size 16 is not supported" in result.stderr


def test_adapters_cannot_be_loaded_into_a_server_that_began_without(served: Served) -> None:
    """`/load_lora_adapter` would be a way around the refusal at start."""
    asked = {"lora_name": "a", "lora_path": "/b"}
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    given = served.client.post("/load_lora_adapter", json=asked, headers=headers)
    assert given.status_code == 400
    assert "LoRA is not enabled" in given.text
