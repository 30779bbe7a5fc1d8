# SPDX-License-Identifier: Apache-2.0
"""A server or an engine of two ranks that is told to end leaves no process, and says how soon.

By the command and by SGLang's own processes: what other tests fork ends in another way.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.server import generate, start_serve

pytestmark = pytest.mark.sglang

WAIT_S = 30.0
"""docs/operate/tiers.md promises 10 on a machine that has nothing else to do; here another test may
run beside. SGLang looks every five seconds whether it was told."""

ENGINE = """
import sys
import sglang

engine = sglang.Engine(
    model_path=sys.argv[1], tp_size=2, device="cpu", dtype="float32",
    radix_cache_backend="depcache", attention_backend="torch_native", sampling_backend="pytorch",
    grammar_backend="none", disable_cuda_graph=True, max_total_tokens=4096, log_level="warning",
)
answer = engine.generate(input_ids=[5, 6, 7, 8], sampling_params={"max_new_tokens": 3})
print("answered", len(answer["output_ids"]), flush=True)
sys.stdin.readline()
engine.shutdown()
print("ended", flush=True)
"""


def family_of(parent: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started, two ranks among them."""
    family = [parent, *parent.children(recursive=True)]
    ranks = [each for each in family if "scheduler" in "".join(each.cmdline())]
    assert len(ranks) == 2, [each.cmdline() for each in family]
    return family


def expect_no_process(family: list[psutil.Process], began_s: float) -> None:
    _, left = psutil.wait_procs(family, timeout=WAIT_S)
    assert not left, [each.cmdline() for each in left]
    print(f"all {len(family)} processes were gone after {time.monotonic() - began_s:.1f} s")


def test_a_server_ends_when_it_is_told_to(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    rng = random.Random(2)
    prompt = TreePrompt(random_tokens(rng, 9), random_forest(rng, 4), random_tokens(rng, 5))
    model, log = model_path("llama_gqa"), tmp_path / "log.txt"
    with start_serve(model, "--tp-size", "2", log=log, by_command=True) as url:
        with httpx.Client(base_url=url, timeout=SLOWEST_S) as client:
            for _ in range(2):
                report = generate(client, prompt)["meta_info"]["depcache"]
            assert report["missed"] == 0
        port = str(urlsplit(url).port)
        (server,) = [each for each in psutil.Process().children() if port in each.cmdline()]
        family = family_of(server)
        began_s = time.monotonic()
        server.send_signal(signal.SIGTERM)
        expect_no_process(family, began_s)


def test_an_engine_ends_when_it_is_shut_down(model_path: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", ENGINE, str(model_path("llama_gqa"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "answered 3\n"
            family = family_of(psutil.Process(process.pid))
            began_s = time.monotonic()
            process.stdin.write("\n")
            process.stdin.close()
            expect_no_process(family[1:], began_s)  # the program itself may have more to do
            assert process.stdout.read() == "ended\n"
            assert process.wait(SLOWEST_S) == 0
            print(f"and the program after {time.monotonic() - began_s:.1f} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
