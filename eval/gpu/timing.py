# SPDX-License-Identifier: Apache-2.0
"""The device, and how long it takes for what it is told."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any


def find_device() -> str | None:
    """Name of the CUDA device; None where there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def device_ms(call: Callable[[], Any], repeats: int, runs: int = 10) -> float:
    """Median over `repeats` of the milliseconds that the device takes for one of `runs` calls.

    The calls are launched back to back, as the layers of a model are.
    """
    import torch

    call()
    times: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(runs):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / runs)
    return median(times)
