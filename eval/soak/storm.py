# SPDX-License-Identifier: Apache-2.0
"""Clients of all kinds on one server: they ask, lose patience, retry, talk nonsense and flush.

Every answer is judged while it happens, as far as the judge keeps up. From time to time all of
them rest, and then the server must hold nothing. Everything is drawn from a seed, each client's
from its own; only what meets in a batch is left to the machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from depcache.errors import ServerError
from eval.soak.calls import Caller, Reply
from eval.soak.fuzz import Target, draw, make_targets, what_is_wrong
from eval.soak.judge import Judge, to_json
from eval.soak.ledger import Ledger
from eval.soak.prompts import World
from eval.soak.questions import Request, about, draw_request
from eval.soak.server import Endpoint, num_leaked, wait_for_rest
from eval.soak.weights import Weights

NUM_CLIENTS = 20
BURST = 50
REST_EVERY_S = 25.0
MAX_DEATHS = 4
"""A phase ends after so many; after half of them nonsense is no longer talked in it."""
RID_REST_S = 6.0
"""Rest before a request id is used again. SGLang aborts what was closed two seconds later, by its
id; a request that has it by then is aborted too, or ends SGLang's detokenizer (0.5.17)."""
_ABORT_CODES = (400, 499)
_SUSPECTS = 20


@dataclass
class Storm[Asked: Endpoint]:
    """All clients of one server, or of one router. `run` may be called again.

    pool_tokens  of the server: the longest prompts are a little shorter
    leaked       most tokens that were held at a rest
    actions      what clients do, and how often
    tidies       flush and persist at rests, which only a server itself can do
    draw         makes a request of a prompt, see `draw_request`
    """

    server: Asked
    ledger: Ledger
    judge: Judge
    world: World
    seed: str
    pool_tokens: int
    weights: Weights
    num_clients: int = NUM_CLIENTS
    leaked: int = 0
    deaths: int = 0
    targets: list[Target] = field(default_factory=list)
    actions: Mapping[str, float] = field(default_factory=lambda: _ACTIONS)
    tidies: bool = True
    draw: Callable[..., Request] = draw_request
    _num_runs: int = 0
    _num_rests: int = 0
    _active: int = 0

    def __post_init__(self) -> None:
        self.calls = Caller(self.server, self.ledger)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._over = asyncio.Event()
        self._changing = asyncio.Lock()

    async def run(self, seconds: float) -> None:
        """All clients for so long, or until `end`, and a rest. ServerError after MAX_DEATHS."""
        self._num_runs += 1
        self.deaths = 0
        self._over.clear()
        await self._read_targets()
        deadline = time.monotonic() + seconds
        tasks = [asyncio.create_task(self._client(i)) for i in range(self.num_clients)]
        keeper = asyncio.create_task(self._keep_alive())
        over = asyncio.create_task(self._over.wait())
        try:
            while (left := deadline - time.monotonic()) > 0 and not over.done():
                await asyncio.wait(
                    [over, keeper, *tasks],
                    timeout=min(left, REST_EVERY_S),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in (keeper, *tasks):
                    if task.done():
                        task.result()  # what went wrong there ends this phase
                if deadline - time.monotonic() > REST_EVERY_S / 2 and not over.done():
                    async with self.at_rest():
                        if self.tidies:
                            await self._tidy()
            self.end()
            await asyncio.gather(*tasks)
        finally:
            self.end()
            for task in (keeper, over, *tasks):
                task.cancel()
        if not self.server.is_ending:
            async with self.at_rest():
                pass

    async def warm_up(self) -> None:
        """The heaviest that clients do, all at once: the memory for it is taken now, not later."""
        await self._read_targets()
        rng = random.Random(f"{self.seed}/warm-up")
        heaviest = [self._burst] * 4 + [self._ask_long] * 20 + [self._fuzz] * 200
        await asyncio.gather(*(action(rng) for action in heaviest + [self._look] * 20))

    async def _read_targets(self) -> None:
        if not self.targets and "fuzz" in self.actions:
            openapi = await self.calls.send("openapi", "GET", "/openapi.json")
            self.targets = [] if openapi is None else make_targets(json.loads(openapi.text))

    def end(self) -> None:
        """No client asks again; `run` returns when those that ask have been answered."""
        self._over.set()
        self._is_open.set()

    # -- rest ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """A while in which no client begins to ask."""
        async with self._changing:
            self._is_open.clear()
            try:
                yield
            finally:
                self._is_open.set()

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """The same, and those that asked have been answered."""
        async with self.closed():
            while self._active:
                await asyncio.sleep(0.02)
            yield

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """The same, and the server must hold nothing then."""
        async with self.quiet():
            for url in self.server.rest_urls:
                async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                    try:
                        held = await wait_for_rest(http)
                    except ServerError as error:
                        if self.server.is_running and not self.server.is_ending:
                            self.ledger.fault("no rest", str(error))
                        held = {}
                if held:
                    self.ledger.fault("held at rest", str(held))
                    self.leaked = max(self.leaked, num_leaked(held))
            self.ledger.seen["rests"] += 1
            yield

    async def _tidy(self) -> None:
        """What only succeeds at rest; something else every time."""
        self._num_rests += 1
        route = (
            "/depcache/persist",
            "/depcache/flush?keep_disk=true&timeout=10",
            "/depcache/persist",
            "/depcache/flush?timeout=10",
            "/flush_cache?timeout=10",
        )[self._num_rests % 5]
        reply = await self.calls.send(f"{route.partition('?')[0]} at rest", "POST", route)
        if reply is not None and not reply.is_ok:
            self.ledger.fault("refused", f"{route} at rest: {reply.text[:300]}", {"route": route})

    async def _keep_alive(self) -> None:
        """Starts the server again when it died; ServerError when it does so all the time."""
        while True:
            await asyncio.sleep(0.3)
            if self.server.is_ending or self.server.is_running:
                continue
            self.deaths += 1
            suspects = self.ledger.suspects()[:_SUSPECTS]
            log = f"{self.server.log_file.name}: {self.server.log_tail()[-1500:]}"
            self.ledger.fault("died", log, {"under way": suspects})
            self.server.is_ending = True
            if self.deaths >= MAX_DEATHS:
                raise ServerError(f"the server died {self.deaths} times")
            async with self.closed():
                await asyncio.to_thread(self.server.stop)
                await asyncio.to_thread(self.server.start)
                self.weights = Weights.of(self.weights.spans[0][2])

    # -- clients -------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{self._num_runs}/{number}")
        actions = [(getattr(self, f"_{name}"), weight) for name, weight in self.actions.items()]
        verbs: list[Callable[[random.Random], Awaitable[None]]] = [verb for verb, _ in actions]
        shares = [weight for _, weight in actions]
        await asyncio.sleep(rng.uniform(0, 0.5))
        while True:
            await self._is_open.wait()
            if self._over.is_set():
                return
            self._active += 1
            try:
                await rng.choices(verbs, shares)[0](rng)
            finally:
                self._active -= 1
            if self.server.is_ending:
                await asyncio.sleep(0.1)

    async def _ask(self, rng: random.Random) -> None:
        await self.ask(self.draw(rng, self.world.draw(rng)))

    async def _ask_long(self, rng: random.Random) -> None:
        num_new = rng.choice((1, 8))
        num_tokens = int(self.pool_tokens * rng.uniform(0.5, 0.95)) - num_new - 16
        await self.ask(self.draw(rng, self.world.draw_long(rng, num_tokens), num_new))

    async def _burst(self, rng: random.Random) -> None:
        """The same at once, many times."""
        request = self.draw(rng, self.world.draw(rng), 4)
        await asyncio.gather(*(self.ask(request) for _ in range(BURST)))

    async def _close(self, rng: random.Random) -> None:
        """A client that goes away at some moment, and sometimes comes again with the same id."""
        request = self.draw(rng, self.world.draw(rng))
        if rng.random() < 0.3:
            request.body["rid"] = f"{self.seed}-{rng.getrandbits(60):015x}."
        work = asyncio.create_task(self._send(request))
        await asyncio.wait([work], timeout=_a_moment(rng))
        self.ledger.seen["answered before it closed" if work.done() else "closed"] += 1
        work.cancel()
        await asyncio.wait([work])
        if "rid" not in request.body:
            return
        await asyncio.sleep(RID_REST_S)
        self.ledger.seen["asked again with the same rid"] += 1
        await self._check(request, await self._send(request))

    async def _abort(self, rng: random.Random) -> None:
        request = self.draw(rng, self.world.draw(rng))
        request.body["rid"] = f"{self.seed}-{rng.getrandbits(60):015x}."
        work = asyncio.create_task(self._send(request))
        await asyncio.wait([work], timeout=_a_moment(rng))
        body = {"rid": request.body["rid"]}
        await self.calls.send("/abort_request", "POST", "/abort_request", body)
        reply = await work
        if reply is None:
            return
        if reply.status in _ABORT_CODES or "abort" in reply.text.lower():
            self.ledger.seen["aborted"] += 1
        else:
            self.ledger.seen["answered before it was aborted"] += 1
            await self._check(request, reply)

    async def _fuzz(self, rng: random.Random) -> None:
        if self.deaths >= MAX_DEATHS // 2 or not self.targets:
            self.ledger.seen["fuzzed requests left out, after deaths"] += 1
            return
        case = draw(rng, self.targets)
        kind = f"fuzz {case.route.partition('?')[0]}"
        reply = await self.calls.send(kind, case.method, case.route, content=case.content)
        seen = self.ledger.seen
        seen["fuzzed"] += 1
        if case.is_fused:
            seen["fuzzed, fused"] += 1
            seen["fuzzed, fused, answered"] += reply is not None and reply.is_ok
        if reply is not None and reply.status < 500:
            wrong = what_is_wrong(reply.status, reply.text)
            if wrong is not None:
                self.ledger.fault("bad refusal", f"{case.name}: {wrong}", case.to_json())

    async def _question(self, rng: random.Random) -> None:
        """explain, prefetch or, seldom, invalidate."""
        route = rng.choice(("explain",) * 4 + ("prefetch",) * 4 + ("invalidate",))
        prompt = self.world.draw(rng)
        if prompt.structure is None:
            return
        await self._expect("POST", f"/depcache/{route}", about(prompt))

    async def _look(self, rng: random.Random) -> None:
        routes = ("/depcache/status", "/depcache/stats", "/metrics", "/v1/models")
        trees = ("/depcache/tree", "/depcache/tree?limit=20&format=dot")
        await self._expect("GET", rng.choice((*routes, *trees)))

    async def _order(self, rng: random.Random) -> None:
        """Orders that may be refused while others ask."""
        flushes = ("/depcache/flush", "/depcache/flush?keep_disk=true", "/flush_cache")
        route = rng.choice((*flushes, "/depcache/persist"))
        await self._expect("POST", route, allowed=(200, 400))

    async def _expect(
        self, method: str, route: str, body: Any = None, allowed: Sequence[int] = (200,)
    ) -> None:
        reply = await self.calls.send(route.partition("?")[0], method, route, body)
        if reply is None or self.server.is_ending or reply.status >= 500:
            return
        if reply.status not in allowed:
            request = {"method": method, "route": route, "body": body}
            self.ledger.fault("refused", f"HTTP {reply.status} {reply.text[:500]}", request)

    # -- questions and answers -----------------------------------------------------------------

    async def ask(self, request: Request, *, is_patient: bool = False) -> list[Any]:
        """Send it, have the answers judged; DepCache's reports, none if there is no answer."""
        return await self._check(request, await self._send(request), is_patient=is_patient)

    async def _send(self, request: Request) -> Reply | None:
        return await self.calls.send(request.kind, "POST", request.route, request.body)

    async def _check(
        self, request: Request, reply: Reply | None, *, is_patient: bool = False
    ) -> list[Any]:
        if reply is None or (self.server.is_ending and not reply.is_ok) or reply.status >= 500:
            return []
        if not reply.is_ok:
            what = f"HTTP {reply.status} {reply.text[:500]}"
            self.ledger.fault("refused", what, _to_json(request))
            return []
        try:
            answers = request.read(reply.text)
        except ValueError as error:
            if not self.server.is_ending:
                self.ledger.fault("wrong", str(error), _to_json(request))
            return []
        weights = self.weights.between(reply.sent_s, reply.received_s)
        for answer, report in answers:
            for name in ("shared", "shifted", "loaded", "missed"):
                self.ledger.seen[name] += 0 if report is None else report[name]
            self.ledger.seen["retractions"] += answer.num_retractions
            verdict = await self.judge.judge(
                request.prompt, answer, weights, report, is_patient=is_patient
            )
            if verdict is not None and verdict.wrong:
                told = {"answer": answer.tokens, "report": report, "weights": weights}
                asked = _to_json(request) | told | {"structure": request.prompt.structure}
                self.ledger.fault("wrong", f"{verdict.wrong} ({to_json(verdict)})", asked)
        return [report for _, report in answers]


_ACTIONS = {
    "ask": 60,
    "close": 14,
    "abort": 5,
    "fuzz": 10,
    "question": 5,
    "look": 3,
    "ask_long": 2.5,
    "order": 0.5,
    "burst": 0.3,
}
"""What a client does next, and how often."""


def _a_moment(rng: random.Random) -> float:
    return rng.choice([0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5), 2.0])


def _to_json(request: Request) -> dict[str, Any]:
    return {"method": "POST", "route": request.route, "body": request.body}
