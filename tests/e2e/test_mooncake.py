# SPDX-License-Identifier: Apache-2.0
"""A real Mooncake as the disk tier's backend: its master, and a process that holds the values.

It talks TCP here, so no RDMA device is needed. Its wheel needs Debian's libibverbs1; without that
these tests are skipped, but not on CI.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depcache.serving.process import find_free_port
from sglang_patches.tiers.disk.storage import open_storage
from tests.e2e import on_disk
from tests.e2e.on_disk import Asked, Start, disk_of, report_of
from tests.e2e.shared_folder import Fleet, make_prompt, wait_for
from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import TreePrompt, random_forest, random_tokens
from tests.helpers.server import generate

try:
    from mooncake import store as library
except ImportError as error:
    WHY = str(error)
    PACKAGE = Path()
else:
    WHY = ""
    PACKAGE = Path(library.__file__).parent

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(bool(WHY) and "CI" not in os.environ, reason=f"no Mooncake: {WHY}"),
]

asked, start = on_disk.asked, on_disk.start

HOLD = """
import sys, time
from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", 256 << 20, 16 << 20, "tcp", "", sys.argv[1])
print("setup", code, flush=True)
time.sleep(3600)
"""
"""A process whose memory the store has; servers themselves lend none, so they may end."""


@dataclass
class Mooncake:
    """The processes, and the server's settings for them."""

    master: subprocess.Popen[Any]
    holder: subprocess.Popen[Any]
    address: str

    @property
    def settings(self) -> dict[str, Any]:
        config = {
            "master_server_address": self.address,
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "local_hostname": "127.0.0.1",
            "global_segment_size": 0,
        }
        return {
            "disk_backend": "mooncake",
            "disk_config": json.dumps(config),
        }


@contextmanager
def _run(words: list[str], log: Path) -> Iterator[subprocess.Popen[Any]]:
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(text: str, log: Path, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + SLOWEST_S
    while text not in log.read_text():
        assert process.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


@pytest.fixture
def mooncake(tmp_path: Path) -> Iterator[Mooncake]:
    assert not WHY, WHY
    port, admin = find_free_port(), find_free_port()
    address = f"127.0.0.1:{port}"
    logs = tmp_path / "master.txt", tmp_path / "holder.txt"
    ports = [f"--rpc_port={port}", f"--metrics_port={admin}"]
    with ExitStack() as stack:
        master = stack.enter_context(_run([str(PACKAGE / "mooncake_master"), *ports], logs[0]))
        _wait_for("admin server started", logs[0], master)
        holder = stack.enter_context(_run([sys.executable, "-c", HOLD, address], logs[1]))
        _wait_for("setup 0", logs[1], holder)
        yield Mooncake(master, holder, address)


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return {}


def test_values_survive_a_restart_and_a_dead_store_costs_no_answer(
    start: Start, asked: Asked, tmp_path: Path, mooncake: Mooncake
) -> None:
    folder = tmp_path / "disk"
    with start(folder, **mooncake.settings) as served:
        asked.ask(served)
        disk = served.engine.wait_until_stored()
        assert disk["stored_tokens"] == disk["cached_tokens"] > 0
        assert not disk["dropped"]
    assert not list(folder.rglob("*.bin")), "values are in files, not in Mooncake"
    with start(folder, **mooncake.settings) as served:
        assert report_of(served.ask(asked.salted, extra_key="b"))["loaded"] == 0
        for prompt, salt in ((asked.tree, None), (asked.staggered, None), (asked.salted, "a")):
            report = report_of(served.ask(prompt, extra_key=salt))
            assert report["missed"] == 0
            assert report["loaded"] == report["context_tokens"]
        plain = served.ask(asked.plain)["meta_info"]
        assert plain["cached_tokens_details"]["storage"] == len(asked.plain.task) - 1
    with start(folder, **mooncake.settings) as served:
        mooncake.holder.kill()
        mooncake.holder.wait()
        rng = random.Random(1)
        for _ in range(3):
            asked.ask(served)  # judged
            served.ask(TreePrompt([], random_forest(rng, 3), random_tokens(rng, 4)))
        assert disk_of(served)["loaded_tokens"] == 0


def test_two_servers_find_each_others_values_and_one_may_be_killed(
    model_path: Callable[[str], Path], tmp_path: Path, mooncake: Mooncake
) -> None:
    fleet = Fleet(model_path(on_disk.MODEL), tmp_path)
    settings = {f"DEPCACHE_{name.upper()}": value for name, value in mooncake.settings.items()}
    rng = random.Random(2)
    prompts = [make_prompt(rng) for _ in range(3)]
    with ExitStack() as stays, ExitStack() as goes:
        one, other = fleet.start(goes, **settings), fleet.start(stays, **settings)
        answers = [generate(one, prompt)["output_ids"] for prompt in prompts]
        stored = wait_for(one, lambda disk: not disk["waiting_tokens"])
        assert stored["stored_tokens"] > 0
        wait_for(other, lambda disk: disk["values"] == stored["values"])
        for number, prompt in enumerate(prompts):
            if number == 1:
                goes.close()  # SIGKILL
                wait_for(other, lambda disk: not disk["neighbours"])
            result = generate(other, prompt)
            assert result["output_ids"] == answers[number]
            report = result["meta_info"]["depcache"]
            assert report["loaded"] == report["context_tokens"] == prompt.num_context
    assert not list((tmp_path / "disk").rglob("*.bin"))


def test_what_is_given_up_is_gone_from_the_store(tmp_path: Path, mooncake: Mooncake) -> None:
    storage = open_storage("mooncake", json.loads(mooncake.settings["disk_config"]), tmp_path)
    value = np.arange(200, dtype=np.uint8)
    assert storage.put("one", value) and storage.put("two", value)
    storage.delete("one")
    assert not storage.get("one", np.zeros_like(value))
    out = np.zeros_like(value)
    assert storage.get("two", out) and (out == value).all()
    storage.delete("two")
    assert storage.get("two", out)  # a reader has it: it stays until the store evicts it
