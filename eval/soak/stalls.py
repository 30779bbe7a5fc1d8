# SPDX-License-Identifier: Apache-2.0
"""How long one heavy request holds up everybody else, each of them alone on an idle server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from eval.soak.heavy import SMALL_NODES, Heavies, Heavy
from eval.soak.ledger import Ledger
from eval.soak.probe import NUM_USERS, Gap, Probe, hold_ups, usual_ms
from eval.soak.server import Server

LIMIT_MS = 500.0
TRIES = 3
"""How often what is over the limit is tried: a machine busy with something else is no stall."""
_QUIET_S = 2.0
_GRACE_S = 0.3
"""What is sent on to the scheduler may hold it up after the answer."""
_TIMEOUT_S = 120.0
_NUM_FILLERS = 4
_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Stall:
    """One heavy request, on its best try.

    held_up_ms  of each other user, the longest time beyond the usual that he waited meanwhile
    twin_ms     the same for the twin; {} without one
    tries       which try it was
    """

    name: str
    status: int
    seconds: float
    held_up_ms: Mapping[str, float]
    twin_ms: Mapping[str, float]
    tries: int

    @property
    def who(self) -> str:
        """Who was held up longest, beyond what the twin held him up."""
        return max(self.held_up_ms, key=self._stall_of, default="")

    @property
    def stall_ms(self) -> float:
        return max(0.0, self._stall_of(self.who))

    def _stall_of(self, user: str) -> float:
        return self.held_up_ms.get(user, 0.0) - self.twin_ms.get(user, 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.name,
            "stall_ms": round(self.stall_ms, 1),
            "who": self.who,
            "held_up_ms": {user: round(ms, 1) for user, ms in self.held_up_ms.items()},
            "twin_ms": {user: round(ms, 1) for user, ms in self.twin_ms.items()},
            "status": self.status,
            "seconds": round(self.seconds, 2),
            "tries": self.tries,
        }


def measure_stalls(
    server: Server,
    ledger: Ledger,
    tokenizer: Any,
    seed: str,
    seconds: float,
    on_step: Callable[[str], None],
) -> tuple[list[Stall], dict[str, float]]:
    """A stall for each heavy request, the longest first; and what is usual for each user, in ms.

    seconds  for all; what is not begun by then is left out, and counted in the ledger
    """
    deadline = time.monotonic() + seconds
    rng = random.Random(f"{seed}/stalls")
    with (
        httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as client,
        Probe(server.url) as probe,
    ):
        heavies = Heavies(tokenizer).all()
        # What is done for the first time takes longer; and the tree has thousands of nodes then.
        for name in (*list(heavies)[:2], *[SMALL_NODES] * _NUM_FILLERS):
            first = heavies[name](rng)
            client.request(first.method, first.route, content=first.content, headers=_HEADERS)
        time.sleep(_QUIET_S)
        start = time.monotonic()
        time.sleep(_QUIET_S)
        if not probe.wait_for_users(start, _TIMEOUT_S):
            ledger.fault("no probe", "not every other user is answered: nobody can be held up")
            return [], {}
        usual = usual_ms(gap for gap in probe.read() if gap.start_s > start)
        bench = _Bench(client, ledger, probe, usual)
        stalls = []
        for name, make in heavies.items():
            on_step(name)
            if time.monotonic() > deadline:
                ledger.seen["heavy requests left out"] += 1
            elif server.is_running:
                stalls.append(bench.measure(name, make, rng))
            else:
                ledger.fault("died", f"before {name}: {server.log_tail()[-1500:]}")
                break
    return sorted(stalls, key=lambda stall: -stall.stall_ms), usual


@dataclass(frozen=True)
class _Bench:
    """Sends one request at a time, and sees what the other users had to wait."""

    client: httpx.Client
    ledger: Ledger
    probe: Probe
    usual: dict[str, float]

    def measure(
        self, name: str, make: Callable[[random.Random], Heavy], rng: random.Random
    ) -> Stall:
        """The best of up to TRIES; one is enough where it is under the limit."""
        best: Stall | None = None
        for number in range(1, TRIES + 1):
            heavy = make(rng)
            twin_ms: dict[str, float] = {}
            if heavy.twin is not None:
                twin = Heavy(f"twin of {name}", "POST", heavy.twin_route, heavy.twin)
                twin_ms, _, _ = self._send(twin, is_ours=False)
            held_up, status, seconds = self._send(heavy, is_ours=True)
            found = Stall(name, status, seconds, held_up, twin_ms, number)
            best = found if best is None or found.stall_ms < best.stall_ms else best
            if best.stall_ms <= LIMIT_MS:
                break
        assert best is not None
        return best

    def _send(self, heavy: Heavy, *, is_ours: bool) -> tuple[dict[str, float], int, float]:
        """How long each other user was held up meanwhile; status and seconds of the request."""
        data = None if heavy.content is None else heavy.content.encode()
        request = {"method": heavy.method, "route": heavy.route, "body": heavy.content}
        start = time.monotonic()
        try:
            reply = self.client.request(heavy.method, heavy.route, content=data, headers=_HEADERS)
            status = reply.status_code
            kind = f"heavy {heavy.route.partition('?')[0]}" if is_ours else "twin of a heavy one"
            self.ledger.note_answer(kind, status, reply.text)
            if status >= 500 and is_ours:
                what = f"{heavy.name}: HTTP {status} {reply.text[:500]}"
                self.ledger.fault("5xx", what, request)
        except httpx.HTTPError as error:
            status = 0
            self.ledger.fault("no answer", f"{heavy.name}: {error!r}", request)
        stop = time.monotonic()
        time.sleep(_GRACE_S)
        self._wait_for_gaps(stop)
        held_up = hold_ups(self.probe.gaps, self.usual, start, stop + _GRACE_S)
        return held_up, status, stop - start

    def _wait_for_gaps(self, stop_s: float) -> None:
        """Wait until each user has come past `stop_s`: a gap is known when it ends."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            last: dict[str, Gap] = {gap.user: gap for gap in self.probe.read()}
            if len(last) == NUM_USERS and all(gap.stop_s > stop_s for gap in last.values()):
                return
            time.sleep(0.02)
