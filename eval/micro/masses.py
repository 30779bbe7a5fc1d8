# SPDX-License-Identifier: Apache-2.0
"""What it costs to add up what the rows of a flat prompt give each other, beside its attention.

One layer of random queries and keys, on a CPU: torch's causal attention, and the sums of
`sglang_patches.attention.masses`, which compute the same weights once more. In turns.

`python -m eval.micro.masses [--tokens N ...] [--repeats N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from eval.micro.spread import spread_ms
from eval.output import write_rows
from sglang_patches.attention.masses import sum_masses

NUM_HEADS, HEAD_DIM, NUM_ROWS = 4, 64, 20


def main() -> None:
    """Print median and spread of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    told = []
    for num in arguments.tokens:
        query, keys, values = (torch.randn(num, NUM_HEADS, HEAD_DIM) for _ in range(3))
        of_heads = [each.transpose(0, 1)[None] for each in (query, keys, values)]
        row_of = torch.arange(num) * (NUM_ROWS + 1) // num
        scale = HEAD_DIM**-0.5
        calls = {
            "attention": lambda of=of_heads: scaled_dot_product_attention(*of, is_causal=True),
            "sums": lambda args=(query, keys, 0, row_of, NUM_ROWS, scale): sum_masses(*args),
        }
        for call in calls.values():
            call()
        for name, call in calls.items():
            told.append({"case": name, "tokens": num, **spread_ms(call, arguments.repeats)})
            print("  ".join(f"{key}={value}" for key, value in told[-1].items()))
    write_rows(arguments, "python -m eval.micro.masses", started, told)


if __name__ == "__main__":
    main()
