# SPDX-License-Identifier: Apache-2.0
"""At the end: have the server write to its disk tier what only its memory holds, and wait."""

from __future__ import annotations

from threading import Event
from typing import Any

from depcache.client.client import Client

_POLL_S = 0.5
_PATIENCE_S = 30.0
"""How long the tier may take no token before the wait for it ends; the server goes on alone."""


def persist(client: Client, stop: Event) -> int | None:
    """Tokens that were waiting to be written; None where there is no disk tier, or no such route.

    Returns when they are written, the tier has taken none for a while, or `stop` is set.
    """
    if _disk_of(client) is None:
        return None
    answer = client.persist()
    if answer is None:
        return None
    waiting = before = int(answer["tokens"])
    idle_s = 0.0
    while before and idle_s < _PATIENCE_S and not stop.wait(_POLL_S):
        now = int((_disk_of(client) or {}).get("waiting_tokens", 0))
        idle_s = 0.0 if now < before else idle_s + _POLL_S
        before = now
    return waiting


def _disk_of(client: Client) -> dict[str, Any] | None:
    return (client.stats().get("tiers") or {}).get("disk")
