# SPDX-License-Identifier: Apache-2.0
"""The queue of victims against a plain dict of worths."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from depcache.cache.node import Node
from depcache.cache.victims import VictimQueue


def make(num: int) -> list[Node]:
    return [Node(bytes([i % 256] * 4), None, 0, None) for i in range(num)]


@pytest.mark.parametrize("num_worths", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_least_worthy_goes_first_whatever_happened_before(num_worths: int, seed: int) -> None:
    rng = random.Random(seed)
    nodes = make(40)
    worths: dict[Node, float] = {}  # what is in the queue, at what it was offered for
    now = dict.fromkeys(nodes, 0.0)
    queue = VictimQueue(now.__getitem__)
    for _ in range(4000):
        node = rng.choice(nodes)
        match rng.randint(0, 4):
            case 0 | 1:
                now[node] = float(rng.randrange(num_worths))
                queue.offer(node)
                worths[node] = now[node]
            case 2:
                queue.withdraw(node)
                worths.pop(node, None)
            case 3 if node in worths and node.waiters:
                now[node] += rng.randint(0, 2)  # seen when it surfaces
                worths[node] = now[node]
            case 3:
                node.waiters = {0: None} if rng.random() < 0.5 else None
                if node in worths:
                    worths[node] = now[node]
            case _:
                found = queue.pop()
                assert (found is None) == (not worths)
                if found is not None:
                    assert found[0] == worths.pop(found[1]) <= min(worths.values(), default=1e9)
        assert len(queue) == len(worths)
        assert (node in queue) == (node in worths)
        if rng.random() < 0.01:
            queue.revalue()
            worths = {each: now[each] for each in worths}


def test_of_equals_the_oldest_goes_first() -> None:
    nodes = make(5)
    worth = dict.fromkeys(nodes, 1.0)
    queue = VictimQueue(worth.__getitem__)
    for node in nodes:
        queue.offer(node)
    queue.offer(nodes[0])  # worth the same as before: as old as before
    worth[nodes[1]] = 2.0
    queue.offer(nodes[1])
    worth[nodes[1]] = 1.0
    queue.offer(nodes[1])
    order = [found[1] for found in iter(queue.pop, None)]
    assert [nodes.index(node) for node in order] in ([0, 2, 3, 4, 1], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("worth", [lambda node: 1.0, lambda node: random.random()])
def test_what_is_gone_takes_no_room(worth: Callable[[Node], float]) -> None:
    nodes = make(1000)
    queue = VictimQueue(worth)

    def size() -> int:
        lists = [bucket.nodes for bucket in queue._buckets.values()]
        return sum(map(sys.getsizeof, [queue._buckets, queue._heap, queue._worths, *lists]))

    for node in nodes:
        queue.offer(node)
    first = size()
    for i in range(30_000):
        node = nodes[i % 1000]
        if i % 3:
            found = queue.pop()
            assert found is not None
            queue.offer(found[1])
        else:
            queue.withdraw(node)
            queue.offer(node)
    assert len(queue) == 1000
    assert size() < 4 * first + 100_000
