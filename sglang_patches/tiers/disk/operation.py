# SPDX-License-Identifier: Apache-2.0
"""What the disk tier was asked to do with a value, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sglang_patches.tiers.disk.value import DiskRef


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of one `store` or `load`.

    reason   "" or why it failed
    ref      the value; None where a store failed
    is_gone  the value is not there any more: forget every ref to it
    rows     what was loaded, uint8 (tokens, bytes per token), unless `into` took it
    num_bytes, seconds   moved, and how long it took without waiting in the queue
    """

    ticket: int
    kind: Literal["store", "load"]
    is_ok: bool
    reason: str
    ref: DiskRef | None
    is_gone: bool = False
    rows: np.ndarray | None = None
    num_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One that is under way.

    num_bytes  of the value
    room       bytes of the disk that are taken for it, or free again when it is deleted
    """

    kind: Literal["store", "load", "delete"]
    ticket: int
    key: bytes
    ref: DiskRef | None
    num_bytes: int
    room: int
