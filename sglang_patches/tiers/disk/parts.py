# SPDX-License-Identifier: Apache-2.0
"""Which ranks have heard of which neighbours' values, for a server with several ranks.

Every rank reads the lists of its own neighbours, at a time of its own. A value is of use when all
ranks have their part of it. So each tells all what it has heard, all follow that in one order, and
what comes of it is the same everywhere.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sglang_patches.tiers.disk.checked import room_bytes
from sglang_patches.tiers.disk.manifest import Known
from sglang_patches.tiers.disk.neighbours import Change
from sglang_patches.tiers.disk.value import Entry

NAME_BYTES: Final = 20
AT_ONCE: Final = 200
"""Changes that one rank tells in one go, so that no pass becomes long."""

_GONE, _THERE, _OURS = b"-", b"+", b"="


def name_of(entry: Entry) -> bytes:
    """What all ranks call a value, NAME_BYTES. Its key will not do, because it names the rank."""
    state = hashlib.blake2b(entry.namespace, digest_size=NAME_BYTES)
    state.update(struct.pack("<qII", entry.home, entry.num_own, entry.num_path))
    state.update(entry.path)
    return state.digest()


def records_of(told: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names, each with the byte behind it."""
    for at in range(0, len(told), NAME_BYTES + 1):
        end = at + NAME_BYTES
        yield told[at:end], told[end : end + 1]


@dataclass(slots=True)
class _Part:
    """Ranks as bits: those that have heard of it, and those that have taken it over.

    known  of this rank; None where it has not heard of it
    """

    there: int = 0
    ours: int = 0
    known: Known | None = None


class Parts:
    """What each rank has heard of every value of a neighbour.

    inherited_bytes  room of what this rank has taken over and others have not, as far as is known
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.inherited_bytes = 0
        self._rank = rank
        self._all = (1 << num_ranks) - 1
        self._parts: dict[bytes, _Part] = {}
        self._names: dict[bytes, bytes] = {}  # by key, for changes that only give that
        self._news: deque[tuple[bytes, bytes, Known | None]] = deque()
        self._sent: list[Known | None] = []

    @property
    def num_news(self) -> int:
        """Changes that this rank has heard and not told yet."""
        return len(self._news)

    def __len__(self) -> int:
        """Values that a rank has heard of."""
        return len(self._parts)

    def begin(self, mine: Iterable[Known], told: Sequence[Iterable[bytes]]) -> None:
        """What there is at a start.

        mine  neighbours' values of this rank
        told  the names of those of every rank
        """
        for rank, names in enumerate(told):
            for name in names:
                self._parts.setdefault(name, _Part()).there |= 1 << rank
        for known in mine:
            name = self._names[known.key] = name_of(known.entry)
            self._parts[name].known = known

    def hear(self, changes: Iterable[Change]) -> None:
        """What this rank's neighbours have done."""
        for key, known in changes:
            if known is None:
                name = self._names.pop(key, None)
                if name is not None:
                    self._news.append((name, _GONE, None))
                continue
            if key in self._names and not known.is_ours:  # the first look lists all there is
                continue
            name = self._names[key] = name_of(known.entry)
            self._news.append((name, _OURS if known.is_ours else _THERE, known))
            if known.is_ours:
                self.inherited_bytes += _room(known)

    def tell(self) -> bytes:
        """The oldest AT_ONCE changes that this rank has not told yet, for `follow` of all ranks."""
        news = [self._news.popleft() for _ in range(min(AT_ONCE, len(self._news)))]
        self._sent = [known for _, _, known in news]
        return b"".join(name + what for name, what, _ in news)

    def follow(self, told: Sequence[bytes]) -> list[Change]:
        """What that changes for all ranks: the same values in the same order, with our keys.

        told  what each rank tells; all of them are given the same
        """
        changes: list[Change] = []
        for rank, news in enumerate(told):
            sent = iter(self._sent if rank == self._rank else ())
            for name, what in records_of(news):
                change = self._follow_one(1 << rank, name, what, next(sent, None))
                if change is not None:
                    changes.append(change)
        return changes

    def _follow_one(self, bit: int, name: bytes, what: bytes, known: Known | None) -> Change | None:
        part = self._parts.setdefault(name, _Part())
        known = part.known if known is None else known
        was_there = part.there == self._all
        if what == _GONE:
            part.there &= ~bit
            part.ours &= ~bit
            if bit == 1 << self._rank:
                part.known = None
            if not part.there:
                del self._parts[name]
            if not was_there:
                return None
            assert known is not None  # all have heard of it, so this rank has
            return known.key, None
        part.known = known
        part.there |= bit
        part.ours |= bit if what == _OURS else 0
        if part.there != self._all:
            return None
        assert known is not None
        is_ours = part.ours == self._all
        if is_ours:
            # Like any other of ours from now on: nobody tells what becomes of it.
            self.inherited_bytes -= _room(known)
            del self._parts[name]
            self._names.pop(known.key, None)
        return known.key, replace(known, is_ours=is_ours)


def _room(known: Known) -> int:
    return room_bytes(known.num_bytes, known.entry.num_path)
