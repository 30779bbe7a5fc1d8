# SPDX-License-Identifier: Apache-2.0
"""How many tokens and bytes a precomputation comes to, and whether the server's tiers hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depcache.precompute.source import Wording


@dataclass(frozen=True, slots=True)
class TierCapacity:
    """What a tier of the server holds and can hold, in tokens; None where it does not say."""

    name: str
    num_tokens: int
    capacity_tokens: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """Some items, looked at closely. `num_cached` of its tokens are in the server's tiers.

    num_chars  of their trees, in the measure of `depcache.precompute.pieces`
    """

    num_items: int = 0
    num_chars: int = 0
    num_tokens: int = 0
    num_cached: int = 0

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.num_items + other.num_items,
            self.num_chars + other.num_chars,
            self.num_tokens + other.num_tokens,
            self.num_cached + other.num_cached,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the items of a precomputation come to.

    words            of their source
    num_wanted       items; of those num_done are done, by the state
    num_sampled      items that the counts of tokens were drawn from; all others are taken to be
                     like them
    num_tokens       of the trees of all wanted items; of those num_cached are cached now
    bytes_per_token  of KV on the device; None where the server does not say
    tiers            fastest first
    """

    words: Wording
    num_wanted: int
    num_done: int
    num_sampled: int
    num_tokens: int
    num_cached: int
    bytes_per_token: int | None
    tiers: tuple[TierCapacity, ...]

    @property
    def is_exact(self) -> bool:
        return self.num_sampled >= self.num_wanted

    @property
    def num_bytes(self) -> int | None:
        """KV of all wanted items."""
        return None if self.bytes_per_token is None else self.num_tokens * self.bytes_per_token

    @property
    def capacity_tokens(self) -> int | None:
        """What all tiers hold together; None where one of them does not say."""
        sizes = [tier.capacity_tokens for tier in self.tiers]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    @property
    def num_fitting(self) -> int:
        """How many of the wanted items fit into all tiers together."""
        capacity = self.capacity_tokens
        if capacity is None or self.num_tokens <= capacity:
            return self.num_wanted
        return self.num_wanted * capacity // self.num_tokens

    @property
    def warning(self) -> str:
        """One sentence where not all fits; "" otherwise."""
        if self.num_fitting == self.num_wanted:
            return ""
        names = " and ".join(tier.name for tier in self.tiers)
        return (
            f"about {self.num_tokens:,} tokens do not fit into the {self.capacity_tokens:,} of "
            f"{names}: what is computed first will be evicted; "
            f"{self.words.fewer.format(num=f'{self.num_fitting:,}')}, or give the server more room "
            "(host_gb)"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            self.words.items: self.num_wanted,
            "done": self.num_done,
            "sampled": self.num_sampled,
            "tokens": self.num_tokens,
            "cached_tokens": self.num_cached,
            "bytes_per_token": self.bytes_per_token,
            "bytes": self.num_bytes,
            "tiers": {
                tier.name: {"tokens": tier.num_tokens, "capacity_tokens": tier.capacity_tokens}
                for tier in self.tiers
            },
            f"fitting_{self.words.items}": self.num_fitting,
            "warning": self.warning,
        }


def make_estimate(
    words: Wording, num_wanted: int, num_done: int, sample: Sample, stats: Mapping[str, Any]
) -> Estimate:
    """From a sample of the wanted items and the body of GET /depcache/stats."""
    share = num_wanted / sample.num_items if sample.num_items else 0.0
    tiers, bytes_per_token = read_tiers(stats)
    return Estimate(
        words=words,
        num_wanted=num_wanted,
        num_done=num_done,
        num_sampled=sample.num_items,
        num_tokens=math.ceil(sample.num_tokens * share),
        num_cached=math.floor(sample.num_cached * share),
        bytes_per_token=bytes_per_token,
        tiers=tiers,
    )


def read_tiers(stats: Mapping[str, Any]) -> tuple[tuple[TierCapacity, ...], int | None]:
    """The tiers of GET /depcache/stats, and the bytes that a token takes on the device."""
    found: Mapping[str, Any] = stats.get("tiers") or {}
    device = found.get("device") or {}
    num_bytes = device.get("bytes_per_token")
    if num_bytes is None and device.get("tokens"):
        num_bytes = device["bytes"] // device["tokens"]
    tiers: list[TierCapacity] = []
    for name, tier in found.items():
        capacity = tier.get("capacity_tokens")
        per_token = tier.get("bytes_per_token") or num_bytes
        if capacity is None and per_token and tier.get("capacity_bytes") is not None:
            capacity = tier["capacity_bytes"] // per_token
        tiers.append(TierCapacity(name, tier.get("tokens") or 0, capacity))
    return tuple(tiers), num_bytes


def spread(items: Sequence[str], count: int) -> list[str]:
    """Returns at most `count`, evenly over their order: it goes by size, so each size is there."""
    if len(items) <= count:
        return list(items)
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]
