# SPDX-License-Identifier: Apache-2.0
"""What a start pays to know whose KV is on disk: GB/s of reading weights in full, and from memory.

`python -m eval.micro.weight_hash [--gb N] [--files N] [--repeats N] [--folder DIR] [--json FILE]`

The files are in the page cache, where loading the model has just put them. A second start reads
the record instead, as long as the files stay as they were.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from eval.output import write_rows
from sglang_patches.tiers.disk import file_hashes
from sglang_patches.tiers.disk.file_hashes import FileHashes

GB = 1_000_000_000
MODEL_BYTES = 16 * GB  # 8 billion parameters of 2 bytes


def make_files(folder: Path, num_bytes: int, num_files: int) -> list[Path]:
    """Random bytes, the same block again and again: what is in them makes no difference."""
    block = np.random.default_rng(0).bytes(1 << 20)
    paths = [folder / f"model-{number:05}.safetensors" for number in range(num_files)]
    for path in paths:
        with path.open("wb") as file:
            for _ in range(num_bytes // num_files >> 20):
                file.write(block)
    return paths


def seconds_to_hash(paths: list[Path], kept_in: Path | None, repeats: int) -> float:
    """Median seconds of a start, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        FileHashes(kept_in).digests(paths)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Print a first start and a later one, for one file and for several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are made; default: temporary")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    file_hashes.RACY_NS = 0  # the files are new, and this is what they cost when they are not
    rows = []
    for num_files in sorted({1, arguments.files}):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            paths = make_files(Path(folder), int(arguments.gb * GB), num_files)
            num_bytes = sum(path.stat().st_size for path in paths)
            for case, kept_in in (("first", None), ("later", Path(folder) / "hashes.json")):
                seconds = seconds_to_hash(paths, kept_in, arguments.repeats)
                row = {
                    "start": case,
                    "files": num_files,
                    "gb": round(num_bytes / GB, 2),
                    "ms": round(seconds * 1e3, 2),
                }
                if case == "first":
                    row["gb_per_s"] = round(num_bytes / seconds / GB, 2)
                    row["s_for_16_gb"] = round(seconds * MODEL_BYTES / num_bytes, 2)
                rows.append(row)
                print("  ".join(f"{key}={value}" for key, value in rows[-1].items()))
    write_rows(arguments, f"python -m eval.micro.weight_hash --gb {arguments.gb:g}", started, rows)


if __name__ == "__main__":
    main()
