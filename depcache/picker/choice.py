# SPDX-License-Identifier: Apache-2.0
"""Which of several servers a request should go to: to the one that holds most of it.

The load is bounded (Mirrokni, Thorup and Zadimoghaddam 2018): a server that got more than its part
of the latest requests gets no more for now, whatever it holds. Below the bound load counts too,
else a server that starts empty stays so: the others, which hold more, are asked up to the bound.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cachetools import TTLCache

WINDOW = 64
"""So many of the latest requests are the load."""

BOUND = 1.25
"""Most of them that one server gets, by the mean of all."""

LOAD_WEIGHT = 0.2
"""What load is worth: with a tenth more than its part, a server must hold 2 % more of a request.

In a simulation of four servers that start empty (10 of 1,000 entities a request, room for 230 on
each, 250 requests behind 150), 70 % of the entities are found with 0, 73 with 0.1, 75 with 0.2 to
0.8. Behind 400 requests it hardly matters: 77 with 0, 78 with 0.2, 76 with 0.8.
"""

SOON_WEIGHT = 0.5
"""What a server is computing is worth so much of what it holds: one may have to wait for it."""

SOON_S = 5.0
MAX_SOON = 20_000
"""How long, and for how many roots, it is remembered where a request was sent that computes them;
what the server says of it arrives later."""


class Held(Protocol):
    """What is known of one server."""

    @property
    def url(self) -> str: ...

    @property
    def is_alive(self) -> bool:
        """Whether requests may go there."""
        ...

    @property
    def roots(self) -> Mapping[str, int]:
        """Tokens by root."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The server for a request.

    held  tokens that it holds of what begins with the request's roots
    """

    url: str
    held: int


class Picker:
    """Chooses servers. Safe to share by threads.

    servers  what is known of each
    clock    seconds, for tests
    """

    def __init__(
        self,
        servers: Sequence[Held],
        *,
        bound: float = BOUND,
        window: int = WINDOW,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not servers:
            raise ValueError("a picker needs at least one server")
        self.servers = tuple(servers)
        self._bound = bound
        self._window = window
        self._latest: deque[str] = deque(maxlen=window)
        # Root -> server that is computing it.
        self._soon: TTLCache[str, str] = TTLCache(MAX_SOON, SOON_S, timer=clock)
        self._lock = threading.Lock()

    def pick(self, roots: Iterable[str], public: Sequence[str] = ()) -> Choice | None:
        """The server for a request with these roots, which counts as sent there.

        roots   keys, as `depcache.prompt.roots.root_keys` has them; none is allowed
        public  what each of them is called where all may read it; none where nothing is public

        None where no server is alive.
        """
        roots = list(roots)
        wanted = dict(zip(roots, public or roots, strict=True))
        with self._lock:
            alive = [server for server in self.servers if server.is_alive]
            if not alive:
                return None
            counts = Counter(self._latest)
            mean = len(self._latest) / len(alive)
            part = self._window / len(alive)
            most = math.ceil(self._bound * (len(self._latest) + 1) / len(alive))
            free = [server for server in alive if counts[server.url] < most] or alive
            held = {
                server.url: {
                    own: max(server.roots.get(own, 0), server.roots.get(other, 0))
                    for own, other in wanted.items()
                }
                for server in alive
            }
            sizes = _sizes_of(list(held.values()))
            whole = sum(sizes.values()) or 1.0

            def worth(url: str) -> float:
                mine = held[url]
                soon = sum(
                    size
                    for root, size in sizes.items()
                    if not mine[root] and self._soon.get(root) == url
                )
                excess = (counts[url] - mean) / part
                share = (sum(mine.values()) + SOON_WEIGHT * soon) / whole
                return share - LOAD_WEIGHT * excess

            best = max((server.url for server in free), key=worth)
            for root, num_tokens in held[best].items():
                if not num_tokens:
                    self._soon[root] = best
            self._latest.append(best)
        return Choice(best, sum(held[best].values()))


def _sizes_of(held: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Tokens of each root; one that nobody holds is as long as the others are on average.

    held  tokens by root, of each server; the same roots in all
    """
    most = {root: max(each[root] for each in held) for root in held[0]}
    known = [num for num in most.values() if num]
    typical = sum(known) / len(known) if known else 1.0
    return {root: num or typical for root, num in most.items()}
