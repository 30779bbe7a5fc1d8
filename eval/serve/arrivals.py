# SPDX-License-Identifier: Apache-2.0
"""When requests arrive: by a rate, or as they did in a recorded trace."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from eval.sets import SetError


def poisson(rate: float, number: int, seed: int = 0) -> list[float]:
    """Seconds from the first request on, of `number` requests at `rate` a second on average."""
    if not rate > 0:
        raise ValueError(f"the rate is {rate!r}: choose more than 0 requests a second")
    gaps = np.random.default_rng(seed).exponential(1 / rate, number)
    return (np.cumsum(gaps) - gaps[:1]).tolist()


def read_trace(file: Path, number: int, rate: float | None = None) -> list[float]:
    """Seconds from the first request on, of the first `number` requests of a trace.

    file  Mooncake's JSONL (`timestamp`, milliseconds) or Azure's CSV (`TIMESTAMP`), .gz or not
    rate  stretch time so that they come at this rate on average; None: as recorded

    Raises SetError when the file is no such trace, or too short.
    """
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8") as lines:
            is_csv = ".csv" in file.suffixes
            times = list(islice(_csv_times(lines) if is_csv else _jsonl_times(lines), number))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetError(
            f"{str(file)!r} is no trace ({error!r}): use Mooncake's or Azure's"
        ) from error
    if len(times) < number:
        raise SetError(f"{str(file)!r} has {len(times)} requests: ask for no more than these")
    start, end = times[0], times[-1]
    scale = 1.0
    if rate is not None and end > start:
        scale = (number - 1) / rate / (end - start)
    return [(time - start) * scale for time in times]


def _csv_times(lines: IO[str]) -> Iterator[float]:
    for row in csv.DictReader(lines):
        # Seven digits of a second; Python reads six.
        text = row["TIMESTAMP"][:26]
        yield datetime.fromisoformat(text).timestamp()


def _jsonl_times(lines: IO[str]) -> Iterator[float]:
    for line in lines:
        yield json.loads(line)["timestamp"] / 1e3
