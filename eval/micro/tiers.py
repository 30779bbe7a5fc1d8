# SPDX-License-Identifier: Apache-2.0
"""What each hop between the tiers costs: GB/s, and microseconds per node.

`python -m eval.micro.tiers [--nodes N] [--tokens N] [--repeats N] [--folder DIR] [--json FILE]`

A batch is `--nodes` nodes of `--tokens` tokens, scattered over the pool, as a request with a
large context needs them. Device pools are SGLang's, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.disk.value import DiskRef, Entry
from sglang_patches.tiers.host.pool import bytes_per_token, row_shape
from sglang_patches.tiers.host.tier import HostTier

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"dtype": torch.float32, "head_num": 2, "head_dim": 32, "layer_num": 4},
    "llama3_8b": {"dtype": torch.bfloat16, "head_num": 8, "head_dim": 128, "layer_num": 32},
}
WAIT_S = 300.0


def seconds_of(call: Callable[[], Any], before: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, after one that is not counted; `before` each is not timed."""
    times = []
    for _ in range(repeats + 1):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure(name: str, num_nodes: int, num_tokens: int, repeats: int, folder: Path) -> list[dict]:
    """One row per hop for one model shape."""
    num = num_nodes * num_tokens
    device = MHATokenToKVPool(2 * num, 1, device="cpu", enable_memory_saver=False, **SHAPES[name])
    host = HostTier(device, 2 * num * bytes_per_token(device))
    mark = Fingerprint({"benchmark": name}, row_shape(device))
    disk = DiskTier(
        mark, folder, 4 * num * host.bytes_per_token + 2**26, max_waiting_stores=num_nodes
    )
    rng = np.random.default_rng(0)
    device_slots = rng.permutation(2 * num)[:num].astype(np.int64) + 1
    allocated = host.alloc(2 * num)
    assert allocated is not None
    host_slots = rng.permutation(allocated)[:num]
    parts = np.split(host_slots, num_nodes)
    entries = [
        Entry(bytes(16), np.arange(i, i + 200, dtype="<i4").tobytes(), num_tokens, 0)
        for i in range(num_nodes)
    ]
    refs: list[DiskRef] = []

    def empty_disk() -> None:
        for ref in refs:
            disk.delete(ref)
        disk.drain(WAIT_S)

    def store_on_disk() -> None:
        for entry, slots in zip(entries, parts, strict=True):
            disk.store(entry, lambda out, slots=slots: host.read(slots, out))
        done = disk.drain(WAIT_S)
        refs[:] = [one.ref for one in done if one.is_ok and one.ref is not None]
        assert len(refs) == num_nodes, disk.describe()

    def load_from_disk() -> None:
        by_home = {ref.key: ref for ref in refs}
        for ref, slots in zip(by_home.values(), parts, strict=True):
            entry = entry_of[ref.key]
            disk.load(
                ref, entry.path, entry.namespace, lambda rows, slots=slots: host.write(slots, rows)
            )
        assert all(one.is_ok for one in disk.drain(WAIT_S))

    hops: dict[str, Callable[[], Any]] = {
        "device_to_host": lambda: host.store(device_slots, host_slots),
        "host_to_device": lambda: host.load(host_slots, device_slots),
        "host_to_bytes": lambda: host.read(host_slots),
        "host_to_disk": store_on_disk,
        "disk_to_host": load_from_disk,
    }
    rows = []
    entry_of: dict[bytes, Entry] = {}
    for hop, call in hops.items():
        if hop == "disk_to_host":
            entry_of = {ref.key: entry for entry, ref in disk.entries()}
        before = empty_disk if hop == "host_to_disk" else lambda: None
        seconds = seconds_of(call, before, repeats)
        rows.append(
            {
                "shape": name,
                "hop": hop,
                "nodes": num_nodes,
                "tokens": num,
                "bytes_per_token": host.bytes_per_token,
                "gb_per_s": round(num * host.bytes_per_token / seconds / 1e9, 3),
                "us_per_node": round(seconds / num_nodes * 1e6, 1),
            }
        )
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()))
    disk.close()
    host.close()
    return rows


def main() -> None:
    """Print every hop of every shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name in SHAPES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            rows += measure(
                name, arguments.nodes, arguments.tokens, arguments.repeats, Path(folder)
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
