# SPDX-License-Identifier: Apache-2.0
"""Steps in where a fused request settles its rows: while that runs, and before it is fused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sglang_patches import compat

_STEPS = 5  # of the event loop, after which a request has gone to the scheduler


async def _nothing(rid: str) -> None:
    return


class Passes:
    """What happens between the two passes of a fused request.

    during, behind  called with the id of the request that settles: when it is on its way, and when
                    it has ended
    num_settled     requests that settled and ended well
    """

    def __init__(self) -> None:
        self.during: Callable[[str], Awaitable[None]] = _nothing
        self.behind: Callable[[str], Awaitable[None]] = _nothing
        self.num_settled = 0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """What steps in between the passes of the engine in this process."""
    passes = Passes()
    run_beside = compat.run_beside

    async def run(manager: Any, obj: Any) -> dict[str, Any]:
        work = asyncio.ensure_future(run_beside(manager, obj))
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        await passes.during(obj.rid)
        out = await work
        passes.num_settled += 1
        await passes.behind(obj.rid)
        return out

    monkeypatch.setattr(compat, "run_beside", run)
    return passes
