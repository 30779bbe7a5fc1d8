# SPDX-License-Identifier: Apache-2.0
"""Two ranks with a disk each are told the same, whatever their disks do and however long it takes.

Each rank is a process with files of its own; they agree over a real process group.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_patches.ranks import RankGroup
from sglang_patches.tiers.disk import neighbours
from sglang_patches.tiers.disk.neighbours import limit_of
from sglang_patches.tiers.disk.ranked import RankedDiskTier
from sglang_patches.tiers.disk.value import make_key
from tests.helpers.ends import SLOWEST_S
from tests.helpers.process_groups import Processes, start_two
from tests.sglang_patches.tiers.disk.backends import BEHAVIOUR, Behaviour
from tests.sglang_patches.tiers.disk.make import ROWS, make_entry, make_print, make_rows

pytestmark = pytest.mark.sglang

NUM_ENTRIES = 40
ROOM = 12_000
"""Bytes of a rank: fewer than all entries take."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with start_two(tmp_path_factory.mktemp("ranks")) as both:
        yield both


class Rank:
    """A tier of one rank over a backend that fails on command, and what it was told."""

    def __init__(self, rank: int, group: Any, folder: Path, *, num_bytes: int = ROOM) -> None:
        self.mood = BEHAVIOUR["ranked"] = Behaviour()
        neighbours.LOOK_EVERY_S = 0.01
        self.print = make_print(rank=f"[{rank}, 2, 0, 1]")
        config = {
            "module_path": "tests.sglang_patches.tiers.disk.backends",
            "class_name": "Moody",
            "mood": "ranked",
            "depcache_folder": str(folder / f"values-{rank}"),
        }
        (folder / f"values-{rank}").mkdir(exist_ok=True, parents=True)
        self.tier = RankedDiskTier(
            RankGroup(group),
            self.print,
            folder,
            num_bytes,
            backend="dynamic",
            backend_config=config,
            failures_to_off=3,
            off_s=0.01,
        )
        rng = np.random.default_rng(rank)
        paths = [list(range(at, at + 3 + at % 4)) for at in range(NUM_ENTRIES)]
        self.entries = [make_entry(self.print, path, 2) for path in paths]
        self.rows = [make_rows(rng, 2, ROWS.num_bytes) for _ in paths]
        self.paths = {make_key(self.print.digest, each): each.path for each in self.entries}
        self.found = {entry.path: ref for entry, ref in self.tier.entries()}
        self.told: list[Any] = [list(self.found)]
        self.num_heard = 0

    def store(self, at: int) -> None:
        ticket = self.tier.store(self.entries[at], self.rows[at])
        self.told.append(("store", at, ticket))

    def load(self, at: int) -> None:
        entry = self.entries[at]
        ref = self.found.get(entry.path)
        ticket = ref and self.tier.load(ref, entry.path, entry.namespace)
        self.told.append(("load", at, ticket))

    def delete(self, at: int) -> None:
        ref = self.found.pop(self.entries[at].path, None)
        if ref is not None:
            self.tier.delete(ref)

    def agree(self) -> None:
        """One pass: everything that ended or was heard, and whatever may be asked of the tier."""
        self.tier.agree()
        heard = self.tier.hear()
        self.found |= {entry.path: ref for entry, ref in heard.fresh}
        fresh = [entry.path for entry, _ in heard.fresh]
        self.num_heard += len(fresh)
        self.told.append((fresh, heard.num_removed, heard.num_inherited))
        for done in self.tier.poll():
            self.told.append((done.kind, done.ticket, done.is_ok, done.is_gone))
            ref = done.ref
            if done.kind == "store" and ref is not None:
                self.found[self.paths[ref.key]] = ref
            if done.is_ok and done.rows is not None:
                assert ref is not None
                at = [entry.path for entry in self.entries].index(self.paths[ref.key])
                np.testing.assert_array_equal(done.rows, self.rows[at])
            if done.is_gone and ref is not None:
                self.found.pop(self.paths[ref.key], None)
        tier = self.tier
        are_there = [(p, tier.owns(ref)) for p, ref in self.found.items() if tier.has(ref)]
        self.told.append((tier.free_bytes, tier.is_off, tier.num_values, are_there))

    def settle(self) -> None:
        """Agree until nothing is under way; the ranks may need unequally many passes."""
        group = self.tier._group  # pyright: ignore[reportPrivateUsage]
        deadline = time.monotonic() + SLOWEST_S
        while any(group.highest([self.tier.num_open])):
            assert time.monotonic() < deadline
            self.tier.agree()
            time.sleep(0.001)
        self.agree()


def wander(
    rank: int, group: Any, folder: Path, seed: int, num_steps: int
) -> tuple[list[Any], dict[str, int]]:
    """Random steps, the same on both ranks, on disks that fail each at times of its own."""
    one = Rank(rank, group, folder)
    steps, own = random.Random(seed), random.Random(f"{seed} {rank}")
    for step in range(num_steps):
        share = 1 if rank and step % 200 > 170 else 0.08  # and for a while all of it fails on one
        one.mood.fails = {verb for verb in ("set", "get", "delete") if own.random() < share}
        one.mood.refuses = own.random() < 0.05
        if own.random() < 0.05:
            files = sorted((folder / f"values-{rank}").glob("*"))
            if files:
                own.choice(files).unlink(missing_ok=True)
        at, kind = steps.randrange(NUM_ENTRIES), steps.random()
        (one.store if kind < 0.5 else one.load if kind < 0.9 else one.delete)(at)
        time.sleep(own.choice((0, 0, 0.001, 0.003)))
        one.agree()
    one.mood.fails, one.mood.refuses = set(), False
    one.settle()
    counts = {"other": one.tier.misses["other_rank"] + one.tier.dropped["other_rank"]}
    counts |= {"off": one.tier.describe()["off_events"], "loaded": one.tier.counters["loaded"]}
    one.tier.close()
    return one.told, counts


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_told_the_same_of_disks_that_fail_alone(
    processes: Processes, tmp_path: Path, seed: int
) -> None:
    sums: Counter[str] = Counter()
    for round_ in range(2):  # the second finds what the first has left
        first, second = processes.run(wander, tmp_path, 10 * seed + round_, 400)
        for i, (ours, theirs) in enumerate(zip(first[0], second[0], strict=True)):
            assert ours == theirs, i
        sums.update(first[1])
    assert first[0][0]
    assert min(sums["other"], sums["loaded"], sums["off"]) > 0, sums


def stay(rank: int, group: Any, folder: Path, damage: str) -> tuple[list[Any], list[bool]]:
    """Store ten values; the second rank comes to harm; ask again, and once more after a start."""
    one = Rank(rank, group, folder)
    for at in range(10):
        one.store(at)
    one.settle()
    found = [(len(one.found), one.tier.num_values)]
    one.tier.close()
    files = sorted((folder / f"values-{rank}").iterdir())
    if rank == 1 and damage == "a value is gone":
        files[0].unlink()
    if rank == 1 and damage == "its list is gone":
        for path in one.tier.folder.glob("manifest*"):
            path.unlink()
    if rank == 1 and damage == "its folder is in the way":
        one.tier.folder.rename(folder / "away")
        one.tier.folder.write_text("not a folder")
    again = Rank(rank, group, folder)
    found.append((len(again.found), again.tier.num_values))
    off = [again.tier.is_off]
    again.store(11)
    again.settle()
    again.tier.close()
    if rank == 1 and damage == "its folder is in the way":
        one.tier.folder.unlink()
        (folder / "away").rename(one.tier.folder)
    last = Rank(rank, group, folder)
    found.append((len(last.found), last.tier.num_values))
    off.append(last.tier.is_off)
    last.tier.close()
    num_files = len(list((folder / f"values-{rank}").iterdir()))
    return [*found, num_files], off


AFTER = {
    "nothing happens": ([(10, 10), (10, 10), (11, 11), 11], [False, False]),
    "a value is gone": ([(10, 10), (9, 9), (10, 10), 10], [False, False]),
    "its list is gone": ([(10, 10), (0, 0), (1, 1), 1], [False, False]),
    "its folder is in the way": ([(10, 10), (0, 0), (10, 10), 10], [True, False]),
}


@pytest.mark.parametrize("damage", AFTER)
def test_a_value_is_there_when_every_rank_has_its_part(
    processes: Processes, tmp_path: Path, damage: str
) -> None:
    first, second = processes.run(stay, tmp_path, damage)
    numbers, off = AFTER[damage]
    assert first == (numbers, off)
    if damage != "its list is gone":  # files that nobody lists stay for a while: see `checked`
        assert second == (numbers, off)


def wait_unequally(rank: int, group: Any, folder: Path) -> list[Any]:
    """One rank's storage hangs; the other one's has long answered."""
    one = Rank(rank, group, folder)
    one.mood.hangs = {"set"} if rank else set()
    one.store(1)
    for _ in range(50):
        one.agree()
        time.sleep(0.002)
    told = [len(one.found)]
    RankGroup(group).highest([0])
    one.mood.release.set()
    one.settle()
    one.tier.close()
    return [*told, len(one.found)]


def test_nothing_is_over_before_it_is_over_everywhere(processes: Processes, tmp_path: Path) -> None:
    assert processes.run(wait_unequally, tmp_path) == [[0, 1], [0, 1]]


def agree_until(rank: Rank, other: Rank, is_so: Callable[[], bool]) -> bool:
    """Let both servers pass until it is so on all ranks; False where it never is."""
    group = rank.tier._group  # pyright: ignore[reportPrivateUsage]
    deadline = time.monotonic() + SLOWEST_S
    while True:
        for each in (rank, other):
            each.agree()
        is_done, is_late = is_so(), time.monotonic() > deadline
        if all(group.lowest([is_done])) or any(group.highest([is_late])):
            return is_done
        time.sleep(0.002)


def outlive(rank: int, group: Any, folder: Path) -> list[Any]:
    """Two servers on one folder: what the first stores, deletes, and leaves behind."""
    first, second = (Rank(rank, group, folder) for _ in range(2))

    def free() -> int:
        return second.tier.free_bytes

    for at in range(5):
        first.store(at)
    first.settle()
    used = first.tier.used_bytes
    # Beside a neighbour that lives it leaves a little free.
    limit = limit_of(ROOM, 1, used)
    told = [agree_until(second, first, lambda: (len(second.found), free()) == (5, limit))]

    told.append(not any(second.tier.owns(ref) for ref in second.found.values()))
    second.load(3)
    second.settle()
    told.append(second.tier.counters["loaded"] == 1)
    first.delete(4)
    told.append(agree_until(second, first, lambda: second.tier.num_values == 4))
    used = first.tier.used_bytes
    first.tier.close()
    # What a dead one has left behind is ours, and counts as such.
    told.append(
        agree_until(second, second, lambda: free() == ROOM - used == ROOM - used_of(second))
    )
    second.load(3)
    second.delete(3)
    second.settle()
    told.append(second.tier.num_values == 3 and used_of(second) < used)
    second.tier.close()
    third = Rank(rank, group, folder)
    told.append(len(third.found) == 3)
    third.tier.close()
    return told


def used_of(rank: Rank) -> int:
    """Bytes that it has itself."""
    return rank.tier.used_bytes


def test_what_a_neighbour_stores_deletes_and_leaves_is_heard(
    processes: Processes, tmp_path: Path
) -> None:
    assert processes.run(outlive, tmp_path) == [[True] * 7] * 2


def hear_half(rank: int, group: Any, folder: Path) -> list[Any]:
    """A neighbour has stored three values on one rank, and only the last of them on the other."""
    ours = Rank(rank, group, folder)
    alone = Rank(rank, None, folder)  # knows nothing of the other rank
    for at in range(3):
        if rank == 0 or at == 2:
            alone.store(at)
    alone.settle()
    told = [agree_until(ours, ours, lambda: len(ours.found) == 1)]
    ours.store(0)  # what only the first rank's neighbour has is ours as well
    ours.settle()
    told.append(ours.tier.owns(ours.found[ours.entries[0].path]))
    if rank:
        alone.store(1)
        alone.settle()
    told.append(agree_until(ours, ours, lambda: ours.entries[1].path in ours.found))
    if rank == 0:
        alone.delete(2)
    told.append(agree_until(ours, ours, lambda: ours.tier.num_values == 2))
    alone.tier.close()
    ours.tier.close()
    return told


def test_a_neighbours_value_is_there_when_all_ranks_have_heard_of_it(
    processes: Processes, tmp_path: Path
) -> None:
    assert processes.run(hear_half, tmp_path) == [[True] * 4] * 2


def share(rank: int, group: Any, folder: Path, seed: int) -> tuple[list[Any], int]:
    """Random steps of two servers on one folder, one of which is started anew now and then."""
    both = [Rank(rank, group, folder) for _ in range(2)]
    steps, own = random.Random(seed), random.Random(f"{seed} {rank}")
    told: list[Any] = []
    num_heard = 0
    for step in range(400):
        at, kind, one = steps.randrange(NUM_ENTRIES), steps.random(), steps.choice(both)
        (one.store if kind < 0.4 else one.load if kind < 0.7 else one.delete)(at)
        if step % 130 == 129:
            both[0].settle()
            both[0].tier.close()
            told += both[0].told
            num_heard += both[0].num_heard
            both[0] = Rank(rank, group, folder)
        time.sleep(own.choice((0, 0, 0.002, 0.006)))
        for one in both:
            one.agree()
    for one in both:
        one.settle()
        one.tier.close()
        told += one.told
    return told, num_heard + sum(one.num_heard for one in both)


@pytest.mark.parametrize("seed", range(2))
def test_ranks_are_told_the_same_of_neighbours(
    processes: Processes, tmp_path: Path, seed: int
) -> None:
    first, second = processes.run(share, tmp_path, seed)
    for i, (ours, theirs) in enumerate(zip(first[0], second[0], strict=True)):
        assert ours == theirs, i
    assert first[1] > 20  # values heard
