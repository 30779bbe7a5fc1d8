# SPDX-License-Identifier: Apache-2.0
"""What a server holds at rest is a leak, or is still on its way."""

from __future__ import annotations

from typing import Any

from eval.soak.server import held_at_rest, num_leaked


def cache(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    device = {"locked_tokens": 0, "private_tokens": 0, "capacity_tokens": 100}
    device |= {"free_tokens": 60, "cached_tokens": 40}
    host = {"capacity_tokens": 50, "free_tokens": 20, "cached_tokens": 30}
    disk = {"waiting_requests": 0, "open_operations": 0}
    return {"cache": {**device, "host": host, "disk": disk, **changes}}, {"waiting_requests": 0}


def test_at_rest_every_token_is_free_or_cached() -> None:
    assert held_at_rest(*cache()) == {}
    held = held_at_rest(*cache(free_tokens=55, locked_tokens=3))
    assert held == {"locked tokens": 3, "tokens neither free nor cached": 5}
    assert num_leaked(held) == 8
    host = {"capacity_tokens": 50, "free_tokens": 20, "cached_tokens": 31}
    assert num_leaked(held_at_rest(*cache(host=host))) == 1
    waiting = held_at_rest(*cache(disk={"waiting_requests": 2, "open_operations": 0}))
    assert (num_leaked(waiting), len(waiting)) == (0, 1)
