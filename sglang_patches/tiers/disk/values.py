# SPDX-License-Identifier: Apache-2.0
"""Which values a disk tier knows to be in the storage, and what they take of the limit."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.neighbours import Change
from sglang_patches.tiers.disk.value import DiskRef, Entry, make_ref


@dataclass(slots=True)
class Value:
    """One value. `room` is what it takes of our limit, `live` counts own tokens that refs mean."""

    num_bytes: int
    room: int
    live: int
    is_ours: bool


@dataclass(slots=True)
class Heard:
    """What neighbours did: values that were not known, and how many were removed or inherited."""

    fresh: list[tuple[Entry, DiskRef]]
    num_removed: int = 0
    num_inherited: int = 0

    def __iadd__(self, later: Heard) -> Heard:
        self.fresh += later.fresh
        self.num_removed += later.num_removed
        self.num_inherited += later.num_inherited
        return self


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

    def hear(self, changes: Iterable[Change], storing: Set[bytes]) -> Heard:
        """Follow what neighbours did.

        storing  keys that we are about to have ourselves
        """
        heard = Heard([])
        for key, known in changes:
            value = self.get(key)
            if known is None:
                if value is not None and not value.is_ours:
                    del self[key]
                    heard.num_removed += 1
            elif value is None and key not in storing:
                self.note(known)
                heard.fresh.append((known.entry, make_ref(key, known.entry)))
            elif value is not None and known.is_ours:
                self.note(known)
                heard.num_inherited += 1
        return heard
