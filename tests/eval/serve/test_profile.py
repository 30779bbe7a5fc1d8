# SPDX-License-Identifier: Apache-2.0
"""Samples are counted where they belong, and a real server can be looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import depcache
from eval.__main__ import main
from eval.serve.profile import DETOKENIZER, FRONT, OTHER, POLLING, SCHEDULER, count

OWN = Path(depcache.__file__).parents[1]
FIRST = 'process 7:"python -m depcache serve sglang_patches/attention/"'
LOOP = f'{FIRST};process 9:"sglang::scheduler";event_loop_normal (sglang/srt/managers/scheduler.py)'
LAYER = (
    f"{LOOP};forward (sglang/srt/models/llama.py);forward (sglang/srt/layers/radix_attention.py)"
)


def test_a_sample_counts_for_the_first_area_that_its_stack_is_in() -> None:
    found = count(
        [
            f"{LAYER};forward_extend (sglang_patches/attention/torch_native.py) 7",
            f"{LOOP};forward (\x00\u3c70",
            "\x15\u7f50)",
            f"{LAYER};set_kv_buffer (sglang/srt/mem_cache/memory_pool.py) 2",
            f"{LAYER};linear (torch/nn/functional.py) 5",
            f"{LOOP};match_prefix (sglang_patches/tree_cache.py);walk (depcache/cache/tree.py) 3",
            f"{LOOP};match_prefix (sglang_patches/tree_cache.py) 1",
            f"{LOOP};process_batch_result (sglang/srt/managers/scheduler.py) 4",
            f"{LOOP};recv_requests (sglang/srt/managers/scheduler.py);recv (zmq/socket.py) 8",
            f"{LOOP} 12",
            f"{LOOP};forward (/a/depcache/.venv/lib/python3.12/site-packages/torch/nn/linear.py) 9",
            f"{LOOP};walk ({OWN}/depcache/cache/tree.py) 1",
            f'{FIRST};process 8:"sglang::detokenizer";decode (transformers/tokenization.py) 6',
            f"{FIRST};run (uvicorn/server.py);f (json/a b.py) 11",
            f"{FIRST};run (a.py);Condition.wait (threading.py) 50",
            f'{FIRST};process 6:"python -c spawn";main (multiprocessing/resource_tracker.py) 1',
        ]
    )
    assert found == {
        (SCHEDULER, "attention"): 7,
        (SCHEDULER, "KV written"): 2,
        (SCHEDULER, "layers of the model"): 5,
        (SCHEDULER, "matching and cache"): 5,
        (SCHEDULER, POLLING): 20,
        (SCHEDULER, "scheduling of SGLang"): 13,
        (DETOKENIZER, "text of the tokens"): 6,
        (FRONT, "HTTP"): 11,
        (FRONT, OTHER): 1,
    }


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--profile", "depcache", "--warm", "1"], "--warm is 1"),
        (["--profile", "vllm"], "name its python with --vllm"),
        (["--profile", "nothing"], "'nothing' is no system"),
    ],
)
def test_what_cannot_be_profiled_is_said_before_a_server_starts(
    model_path: Callable[[str], Path],
    flags: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["serve", "--workloads", "zipfian:demo", "--model", str(model_path("llama_gqa"))]
    assert main([*arguments, *flags]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.sglang
def test_a_real_server_is_profiled(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "profile.json"
    arguments = ["serve", "--profile", "depcache", "--workloads", "zipfian:demo"]
    arguments += ["--model", str(model_path("llama_gqa")), "--entities", "3", "--paths", "6"]
    # So many that an area which takes a millisecond of each is missed by no chance.
    arguments += ["--stream", "10", "--warm", "300", "--load", "0", "--pool-tokens", "20000"]
    assert main([*arguments, "--json", str(out)]) == 0
    found = json.loads(out.read_text())["profile"]
    areas = {(row["process"], row["area"]) for row in found["rows"]}
    assert {(SCHEDULER, "attention"), (SCHEDULER, "layers of the model")} < areas
    assert found["requests"] == 150
    assert 0 < found["busy_ms"] and 0 < found["ttft_ms_p50_without_profiler"]
    assert found["computed_tokens"] < found["prompt_tokens"]
