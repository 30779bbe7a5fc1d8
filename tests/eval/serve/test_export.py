# SPDX-License-Identifier: Apache-2.0
"""An exported workload is replayed by `sglang.bench_serving` as its command says, on no network."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from depcache.client.client import DEFAULT_URL, Client
from eval.__main__ import main
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_serve

pytestmark = pytest.mark.sglang

COUNTS = ["--stream", "4", "--warm", "1", "--load", "1"]


def test_the_printed_command_replays_an_export_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "out"
    arguments = ["serve", "--model", "depcache-tiny", "--workloads", "questions:demo", "--quick"]
    assert main([*arguments, *COUNTS, "--max-tokens", "4", "--export", str(folder)]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]

    # Whoever looks for a proxy or a hub finds a closed port.
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    offline = {**os.environ, **closed, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    server = start_serve("depcache-tiny", log=tmp_path / "log")
    with server as url, Client(url) as client:
        for command in commands:
            result = tmp_path / "result.jsonl"
            command = [url if word == DEFAULT_URL else word for word in command]
            done = subprocess.run(
                [*command, "--output-file", str(result)],
                capture_output=True,
                text=True,
                timeout=SLOWEST_S,
                env=offline,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            assert "Fail to load tokenizer" not in done.stdout
            [line] = result.read_text().splitlines()
            report = json.loads(line)
            assert report["completed"] == 6
            assert report["total_output_tokens"] == 6 * 4
            result.unlink()
            # The first file is of dependency prompts (what warms up is none), the second of text.
            assert _num_dependency_requests(client) == 6


def _num_dependency_requests(client: Client) -> int:
    return client.stats()["requests"]["requests"]
