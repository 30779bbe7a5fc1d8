# SPDX-License-Identifier: Apache-2.0
"""Makes every load from host memory take long, in the process that imports it."""

from __future__ import annotations

import time

from sglang_patches.tiers.host.residency import PendingLoad

PAUSE_S = 3.0

_run = PendingLoad.run


def _run_late(self: PendingLoad) -> None:
    time.sleep(PAUSE_S)
    _run(self)


PendingLoad.run = _run_late
