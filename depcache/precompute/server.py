# SPDX-License-Identifier: Apache-2.0
"""What a precomputation has to know of a server: whose KV it makes, and how much it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from depcache.client.client import Client
from depcache.errors import ServerError
from depcache.precompute.estimate import read_tiers

_RESERVED_TOKENS = 64
"""What a prompt keeps free for the task and the answer."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    made_for           what decides the KV of a token there, by name
    max_prompt_tokens  longest prompt it takes; None where it does not say
    stats              the body of GET /depcache/stats
    """

    made_for: dict[str, str]
    max_prompt_tokens: int | None
    stats: Mapping[str, Any]


def look_at(client: Client) -> ServerFacts:
    """Ask the server; ServerError when it is not there, or runs without DepCache."""
    status = client.status()
    stats = client.stats()
    try:
        info = client.model_info()
    except ServerError as error:
        if error.status is None:
            raise
        info = {}  # behind a router that passes only some routes on
    made_for = {
        name: str(info.get(key) or "")
        for name, key in (
            ("model", "model_path"),
            ("tokenizer", "tokenizer_path"),
            ("weights", "weight_version"),
        )
    }
    made_for["fingerprint"] = _find_fingerprint(status)
    tiers, _ = read_tiers(stats)
    capacity = next((tier.capacity_tokens for tier in tiers if tier.name == "device"), None)
    sizes = [size for size in (info.get("max_model_len"), capacity) if size]
    room = max(1, min(sizes) - _RESERVED_TOKENS) if sizes else None
    return ServerFacts(made_for, room, stats)


def _find_fingerprint(value: Any) -> str:
    """The first `fingerprint` anywhere in the status: a tier that outlives the server has one."""
    if not isinstance(value, Mapping):
        return ""
    if isinstance(value.get("fingerprint"), str):
        return value["fingerprint"]
    return next(filter(None, map(_find_fingerprint, value.values())), "")
