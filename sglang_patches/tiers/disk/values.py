# SPDX-License-Identifier: Apache-2.0
"""Which values a disk tier knows to be in the storage, and what they take of the limit."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.neighbours import Change


@dataclass(slots=True)
class Value:
    """One value. `room` is what it takes of our limit, `live` counts own tokens that refs mean."""

    num_bytes: int
    room: int
    live: int
    is_ours: bool


class Values(dict[bytes, Value]):
    """Values by key. `used_bytes` is what ours take of the limit."""

    def __init__(self, known: Iterable[Known]) -> None:
        super().__init__()
        self.used_bytes = 0
        for one in known:
            self.note(one)

    def note(self, known: Known) -> None:
        """The value is there. One that is there already, and was a neighbour's, may be ours now."""
        before = self.get(known.key)
        room = room_bytes(known.num_bytes, known.entry.num_path) if known.is_ours else 0
        live = known.entry.num_own if before is None else before.live
        self[known.key] = Value(known.num_bytes, room, live, known.is_ours)
        self.used_bytes += room - (0 if before is None else before.room)

    def hear(self, changes: Iterable[Change], storing: Set[bytes]) -> list[Known]:
        """Follow what neighbours did; the values that were not known before.

        storing  keys that we are about to have ourselves
        """
        fresh: list[Known] = []
        for key, known in changes:
            value = self.get(key)
            if known is None:
                if value is not None and not value.is_ours:
                    del self[key]
            elif value is None and key not in storing:
                self.note(known)
                fresh.append(known)
            elif value is not None and known.is_ours:
                self.note(known)
        return fresh
