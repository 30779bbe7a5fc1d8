# SPDX-License-Identifier: Apache-2.0
"""Impatient clients on one HTTP server, and bystanders whose tokens must not change meanwhile.

Everything is drawn from a seed, each client from its own; only what meets in a batch, and what
the server does first, is left to the machine.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from eval.soak.calls import read_generated
from tests.helpers.ends import SLOWEST_S
from tests.helpers.prompts import (
    Tree,
    TreePrompt,
    chain_tree,
    plain,
    random_forest,
    random_tokens,
)

SYSTEM_LEN = 9
NUM_TREES = 10  # few, so that prompts meet nodes of others, in place and moved
LONG_TREE_LEN = 100
FIRST_OF_LONG_TREES = 1001  # behind the tokens that the other trees are drawn from

BYSTANDER_NEW_TOKENS = 12
# In natural logarithm, the likeliest token to the second: a hundred times what the order of
# additions changes. A smaller lead may change hands when other requests share the batch.
CLEAR_LEAD = 0.01

MAX_TRIES = 4
_ABORT_CODES = (400, 499)  # what SGLang says to the client of an aborted request

_MALFORMED: tuple[dict[str, Any], ...] = (
    {"depcache_version": 3},
    {"depcache_colour": "red"},
    {"depcache_layout": "spiral"},
    {"depcache_segment_lens": [10**18]},
    {"depcache_segment_parents": [7]},
)


@dataclass
class World:
    """What the prompts of one storm are made of, the bystanders' too: they share nodes."""

    system: list[int]
    trees: list[Tree]
    long_trees: list[Tree]

    @classmethod
    def make(cls, rng: random.Random) -> World:
        firsts = range(FIRST_OF_LONG_TREES, FIRST_OF_LONG_TREES + 4)
        return cls(
            random_tokens(rng, SYSTEM_LEN),
            random_forest(rng, NUM_TREES),
            [chain_tree(rng, LONG_TREE_LEN, first) for first in firsts],
        )

    def draw(self, rng: random.Random) -> TreePrompt:
        """Any layout, or a plain prompt; one in six is long enough for several chunks."""
        kind = rng.choice(["tree", "staggered", "sequential", "sequential", "plain"])
        task = random_tokens(rng, rng.randrange(1, 9))
        if kind == "plain":
            # Half of them begin as the trees do, whose nodes they share then.
            head = [*self.system, *rng.choice(self.trees)[0]] if rng.random() < 0.5 else []
            return plain(head + random_tokens(rng, rng.randrange(0, 40)) + task)
        trees = rng.sample(self.trees, rng.randrange(1, 6))
        if rng.random() < 1 / 6:
            trees.insert(rng.randrange(len(trees)), rng.choice(self.long_trees))
        if rng.random() < 1 / 4:  # some begin alike, or are the same
            tokens, children = rng.choice(trees)
            stop = rng.randrange(1, len(tokens) + 1)
            twin = ([*tokens[:stop], *random_tokens(rng, rng.randrange(3))], children)
            trees.insert(rng.randrange(len(trees)), rng.choice([twin, (tokens, children)]))
        return TreePrompt(self.system, trees, task, kind)

    def draw_bystander(self, rng: random.Random) -> TreePrompt:
        """A prompt whose answer is the same whatever the cache holds."""
        if rng.random() < 0.25:
            return plain(self.system + random_tokens(rng, 20))
        return TreePrompt(self.system, rng.sample(self.trees, 3), random_tokens(rng, 4))


@dataclass(frozen=True)
class Bystander:
    """A request and the tokens that answer it on a quiet server."""

    body: dict[str, Any]
    tokens: list[int]


def record_bystanders(
    client: httpx.Client, world: World, rng: random.Random, num: int
) -> list[Bystander]:
    """`num` requests whose every token wins clearly, with their answers."""
    found: list[Bystander] = []
    for _ in range(20 * num):
        prompt = world.draw_bystander(rng)
        body = make_body(prompt, BYSTANDER_NEW_TOKENS)
        answer = client.post("/generate", json={**body, **_WITH_LEADS}).json()
        leads = (a[0] - b[0] for a, b in answer["meta_info"]["output_top_logprobs"])
        if min(leads) > CLEAR_LEAD:
            found.append(Bystander(body, answer["output_ids"]))
        if len(found) == num:
            return found
    raise AssertionError(f"only {len(found)} of {20 * num} prompts have an answer without a tie")


_WITH_LEADS = {"return_logprob": True, "top_logprobs_num": 2}


def make_body(prompt: TreePrompt, num_new: int, n: int = 1) -> dict[str, Any]:
    """The body of a greedy /generate request."""
    params: dict[str, Any] = {
        "max_new_tokens": num_new,
        "temperature": 0,
        "ignore_eos": True,
        "n": n,
    }
    custom_params = prompt.params()
    if custom_params is not None:
        params["custom_params"] = custom_params
    return {"input_ids": prompt.tokens, "sampling_params": params}


@dataclass
class Storm:
    """Some clients that lose patience and bystanders that do not, until the clients are done.

    troubles  what no client may ever see, one sentence each; the storm ends at the first
    seen      what happened, by name
    """

    url: str
    world: World
    bystanders: list[Bystander]
    seed: int
    troubles: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def run(self, num_clients: int, num_requests: int) -> None:
        """Run `num_clients` of `num_requests` requests each."""
        asyncio.run(self._run(num_clients, num_requests))

    async def _run(self, num_clients: int, num_requests: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=SLOWEST_S, limits=limits) as self._http,
        ):
            watch = [asyncio.create_task(self._stand_by(i)) for i in range(2)]
            await asyncio.gather(*(self._client(i, num_requests) for i in range(num_clients)))
            self._is_over = True
            await asyncio.gather(*watch)

    _is_over = False

    # -- bystanders --------------------------------------------------------------------------

    async def _stand_by(self, number: int) -> None:
        order = self.bystanders[number:] + self.bystanders[:number]
        while not self._is_over and not self.troubles:
            for bystander in order:
                stream = bool(number)
                answers = await self._answers({**bystander.body, "stream": stream})
                if not answers:
                    return
                self.seen["bystander answers"] += 1
                if answers[0]["output_ids"] != bystander.tokens:
                    self.troubles.append(
                        f"a bystander was told {answers[0]['output_ids']}, not "
                        f"{bystander.tokens}: {answers[0]['meta_info'].get('depcache')}"
                    )

    # -- clients -----------------------------------------------------------------------------

    async def _client(self, number: int, num_requests: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        await asyncio.sleep(rng.uniform(0, 0.5))
        for request in range(num_requests):
            if self.troubles:
                return
            if rng.random() < 0.1:
                await self._send_malformed(rng)
            else:
                await self._send(rng, f"{number:04d}-{request:04d}")

    async def _send_malformed(self, rng: random.Random) -> None:
        good = TreePrompt(self.world.system, self.world.trees[:1], [20])
        body = make_body(good, 4)
        body["sampling_params"]["custom_params"] |= rng.choice(_MALFORMED)
        body["stream"] = rng.random() < 0.5
        response = await self._post("/generate", body)
        self.seen["malformed"] += 1
        if response is not None and _error_code(response) != 400:
            self.troubles.append(f"a malformed request was answered {response.text[:300]}")

    async def _send(self, rng: random.Random, name: str) -> None:
        """One request, tried again when its client gave up; the last try is patient."""
        n = 2 if rng.random() < 0.15 else 1
        body = make_body(self.world.draw(rng), rng.choice([1, 2, 8, 40, 120, 120]), n)
        body["stream"] = rng.random() < 0.5
        body["extra_key"] = rng.choice([None, None, None, "another tenant"])
        for number in range(MAX_TRIES):
            body["rid"] = f"{name}-{number}"
            end = rng.choice(["answer", "close", "close", "abort"])
            after_s = rng.choice([0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5), 2.0])
            if end == "abort":
                await self._send_and_abort(body, after_s)
            elif end == "close" and number < MAX_TRIES - 1:
                await self._send_and_close(body, after_s)
            else:
                await self._send_and_wait(body)
                return
            if rng.random() < 0.3:
                return

    async def _send_and_wait(self, body: dict[str, Any]) -> None:
        num_new = body["sampling_params"]["max_new_tokens"]
        answers = await self._answers(body)
        self.seen["answers"] += len(answers)
        for answer in answers:
            self._note(answer)
            meta = answer["meta_info"]
            if meta["finish_reason"]["type"] != "length" or len(answer["output_ids"]) != num_new:
                self.troubles.append(f"asked for {num_new} tokens, got {answer}")

    async def _send_and_close(self, body: dict[str, Any], after_s: float) -> None:
        work = asyncio.create_task(self._answers(body))
        _, running = await asyncio.wait([work], timeout=after_s)
        self.seen["closed" if running else "answered before they were closed"] += 1
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass

    async def _send_and_abort(self, body: dict[str, Any], after_s: float) -> None:
        work = asyncio.create_task(self._answers(body, may_abort=True))
        await asyncio.wait([work], timeout=after_s)
        await self._post("/abort_request", {"rid": body["rid"]})
        answers = await work
        is_aborted = not answers or answers[0]["meta_info"]["finish_reason"]["type"] == "abort"
        self.seen["aborted" if is_aborted else "answered before they were aborted"] += 1

    def _note(self, answer: dict[str, Any]) -> None:
        meta = answer["meta_info"]
        self.seen["retractions"] += meta["num_retractions"]
        for name in ("shared", "shifted", "loaded", "missed"):
            self.seen[name] += meta.get("depcache", {}).get(name, 0)

    # -- HTTP --------------------------------------------------------------------------------

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response | None:
        """None, and a trouble, if the server broke the connection or was too slow."""
        try:
            return await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            self.troubles.append(f"no answer ({error!r}) to {path} {body}")
            return None

    async def _answers(self, body: dict[str, Any], may_abort: bool = False) -> list[dict[str, Any]]:
        """The answers to one request, `n` of them; none, and a trouble, if it failed.

        may_abort  none, and no trouble, if the server says that it was aborted
        """
        response = await self._post("/generate", body)
        if response is None:
            return []
        text = response.text
        try:
            answers = read_generated(text, is_stream=body["stream"])
        except (ValueError, KeyError) as error:
            answers = []
            text = f"{error!r} in {text}"
        is_whole = len(answers) == body["sampling_params"]["n"]
        if response.status_code == 200 and is_whole:
            return answers
        if may_abort and _error_code(response) in _ABORT_CODES and "abort" in text.lower():
            return []
        self.troubles.append(f"HTTP {response.status_code} {text[-500:]} to {body}")
        return []


def _error_code(response: httpx.Response) -> int | None:
    """What an error says of itself; a stream that has begun is a 200 whatever comes. Or None."""
    if response.status_code != 200:
        return response.status_code
    for line in response.text.split("\n"):
        event = line.removeprefix("data: ")
        if event.startswith('{"error"'):
            return int(json.loads(event)["error"]["code"])
    return None
