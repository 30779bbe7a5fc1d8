# SPDX-License-Identifier: Apache-2.0
"""Which server a request goes to."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest

from depcache.picker.choice import SOON_S, Picker


@dataclass
class Server:
    url: str
    roots: dict[str, int] = field(default_factory=dict)
    is_alive: bool = True


def test_the_one_that_holds_most_tokens_is_picked() -> None:
    one = Server("one", {"a": 10, "b": 10})
    two = Server("two", {"c": 100})
    picker = Picker([one, two])
    choice = picker.pick(["a", "b", "c"])
    assert choice is not None and (choice.url, choice.held) == ("two", 100)
    choice = picker.pick(["a", "b", "a"])
    assert choice is not None and (choice.url, choice.held) == ("one", 20)


def test_what_is_public_counts_for_all_and_once() -> None:
    one = Server("one", {"a": 10, "b": 10})
    two = Server("two", {"public a": 9, "public b": 12, "a": 8})
    picker = Picker([one, two])
    choice = picker.pick(["a", "b"], ["public a", "public b"])
    assert choice is not None and (choice.url, choice.held) == ("two", 21)
    choice = picker.pick(["a", "b"])
    assert choice is not None and (choice.url, choice.held) == ("one", 20)


def test_what_nobody_holds_goes_where_least_was_sent_and_then_stays_there() -> None:
    now = [0.0]
    servers = [Server("one"), Server("two"), Server("three")]
    picker = Picker(servers, clock=lambda: now[0])
    picks = [picker.pick([root]) for root in ("a", "b", "c")]
    assert {pick.url for pick in picks if pick} == {"one", "two", "three"}
    again = [picker.pick([root]) for root in ("c", "a", "b")]
    by_root = dict(zip("abc", (pick.url for pick in picks if pick), strict=True))
    assert [pick.url for pick in again if pick] == [by_root[root] for root in "cab"]
    now[0] = 2 * SOON_S  # no server has said that it holds them
    assert {pick.url for root in "aaa" if (pick := picker.pick([root]))} != {by_root["a"]}


def test_a_dead_server_gets_nothing_and_without_any_there_is_no_choice() -> None:
    one, two = Server("one", {"a": 10}), Server("two")
    picker = Picker([one, two])
    one.is_alive = False
    assert {picker.pick(["a"]).url for _ in range(5)} == {"two"}  # type: ignore[union-attr]
    two.is_alive = False
    assert picker.pick(["a"]) is None


def test_nobody_gets_more_than_the_bound_however_much_it_holds() -> None:
    servers = [Server(str(i), {"a": 100} if i == 0 else {}) for i in range(4)]
    picker = Picker(servers, bound=1.25)
    counts = Counter(picker.pick(["a"]).url for _ in range(1000))  # type: ignore[union-attr]
    assert max(counts.values()) <= 1.3 * 250
    assert counts["0"] > 300


def test_one_server_gets_everything() -> None:
    picker = Picker([Server("one")])
    assert {picker.pick([]).url for _ in range(100)} == {"one"}  # type: ignore[union-attr]


def test_no_servers_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one server"):
        Picker([])


def test_ten_entities_a_request_are_found_more_often_than_by_votes() -> None:
    """As in the simulation that this rule comes from: what servers hold beats hashing."""
    num, size, cap = 600, 10, 60
    weights = 1 / np.arange(1, num + 1)
    rng = np.random.default_rng(0)
    draws = [
        rng.choice(num, size, replace=False, p=weights / weights.sum()).tolist()
        for _ in range(1500)
    ]

    def hit(is_picked: bool) -> float:
        servers = [Server(str(i)) for i in range(4)]
        caches: list[OrderedDict[str, int]] = [OrderedDict() for _ in servers]
        for server, cache in zip(servers, caches, strict=True):
            server.roots = cache
        homes = random.Random(1)
        home = {root: homes.randrange(4) for root in range(num)}
        picker = Picker(servers)
        found = total = 0
        for number, drawn in enumerate(draws):
            if is_picked:
                choice = picker.pick(map(str, drawn))
                assert choice is not None
                chosen = int(choice.url)
            else:
                chosen = Counter(home[root] for root in drawn).most_common(1)[0][0]
            cache = caches[chosen]
            for root in map(str, drawn):
                if number >= 500:
                    total += 1
                    found += root in cache
                cache[root] = 1
                cache.move_to_end(root)
            while len(cache) > cap:
                cache.popitem(last=False)
        return found / total

    assert hit(True) > hit(False) + 0.03


def test_servers_that_start_empty_are_all_used() -> None:
    rng = random.Random(1)
    names = [str(each) for each in range(1000)]
    weights = [1 / (rank + 1) for rank in range(1000)]
    servers = {str(i): Server(str(i), {}) for i in range(4)}
    picker = Picker(list(servers.values()))
    counts: Counter[str] = Counter()
    for _ in range(300):
        roots = list(dict.fromkeys(rng.choices(names, weights, k=10)))
        choice = picker.pick(roots)
        assert choice is not None
        held = servers[choice.url].roots
        assert choice.held == sum(held.get(root, 0) for root in roots)
        servers[choice.url].roots = dict(held) | dict.fromkeys(roots, 60)
        counts[choice.url] += 1
    assert max(counts.values()) < 1.15 * 75, counts
