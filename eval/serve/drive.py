# SPDX-License-Identifier: Apache-2.0
"""Send requests to a server as users would, and note what came back when.

Closed loop: so many users, each of whom asks again as soon as the answer is complete. Open
loop: every request at its time, however many are still running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eval.serve.records import Record

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent for one request.

    route   of the OpenAI API
    fields  of the request, `extra_body` included; streaming and greedy decoding are added
    """

    route: Literal["chat", "completions"]
    fields: dict[str, Any] = field(default_factory=dict)


def drive(
    url: str,
    calls: Sequence[Call],
    note: Callable[[int], Record],
    *,
    max_tokens: int,
    concurrency: int = 1,
    arrivals: Sequence[float] | None = None,
    stops_early: bool = False,
    on_done: Callable[[], None] = lambda: None,
) -> tuple[list[Record], float]:
    """Send all calls; their records, in order, and the seconds until the last one was complete.

    url          of the server, without `/v1`
    note         makes the empty record of the call with this number
    max_tokens   of every answer
    concurrency  users of the closed loop
    arrivals     seconds at which the calls are due: an open loop, and `concurrency` is not used
    stops_early  whether the model may end an answer before `max_tokens`
    on_done      called after each
    """
    records = [note(i) for i in range(len(calls))]
    asker = _Asker(calls, records, max_tokens, stops_early, on_done)
    return records, asyncio.run(asker.run(url, concurrency, arrivals))


@dataclass(slots=True)
class _Asker:
    calls: Sequence[Call]
    records: list[Record]
    max_tokens: int
    stops_early: bool
    on_done: Callable[[], None]
    started: float = 0.0

    async def run(self, url: str, concurrency: int, arrivals: Sequence[float] | None) -> float:
        """Send everything; seconds until the last answer was complete."""
        from openai import AsyncOpenAI

        waiting = iter(range(len(self.calls)))
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
        ) as client:

            async def be_a_user() -> None:
                for i in waiting:
                    self.records[i].arrival_s = time.perf_counter() - self.started
                    await self._ask(client, i)

            async def arrive(i: int, due_s: float) -> None:
                # A sleep may end too early: uvloop, which SGLang installs, counts milliseconds.
                while (wait_s := due_s - (time.perf_counter() - self.started)) > 0:
                    await asyncio.sleep(wait_s)
                self.records[i].arrival_s = due_s
                await self._ask(client, i)

            self.started = time.perf_counter()
            if arrivals is None:
                await asyncio.gather(*(be_a_user() for _ in range(concurrency)))
            else:
                await asyncio.gather(*map(arrive, range(len(self.calls)), arrivals))
            return time.perf_counter() - self.started

    async def _ask(self, client: Any, i: int) -> None:
        """Fill a record. Whatever goes wrong is noted in it, and nothing is raised."""
        import httpx
        from openai import OpenAIError

        record = self.records[i]
        due_s = self.started + record.arrival_s
        record.sent_s = time.perf_counter() - self.started
        try:
            await self._read(client, self.calls[i], record, due_s)
        except (OpenAIError, httpx.HTTPError) as error:
            record.error = f"{type(error).__name__}: {error}"
        record.e2e_s = time.perf_counter() - due_s
        self.on_done()

    async def _read(self, client: Any, call: Call, record: Record, due_s: float) -> None:
        is_chat = call.route == "chat"
        create = (client.chat.completions if is_chat else client.completions).create
        extra = {"ignore_eos": not self.stops_early} | call.fields.get("extra_body", {})
        stream = await create(
            max_tokens=self.max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            **(call.fields | {"extra_body": extra}),
        )
        last_s: float | None = None
        is_finished = False
        async for chunk in stream:
            now_s = time.perf_counter()
            for choice in chunk.choices:
                text = choice.delta.content if is_chat else choice.text
                if text:
                    record.output_text += text
                    if last_s is None:
                        record.ttft_s = now_s - due_s
                    else:
                        record.itl_s.append(now_s - last_s)
                    last_s = now_s
                is_finished |= choice.finish_reason is not None
            if chunk.usage is not None:
                _read_usage(chunk.usage, record)
            record.report = (getattr(chunk, "metadata", None) or {}).get("depcache", record.report)
        if not is_finished:
            record.error = "the answer broke off: the stream ended without a finish_reason"
        elif record.ttft_s is None:
            record.error = "the answer is empty: no chunk had any text"
        elif not record.prompt_tokens:
            record.error = "the answer has no usage: the server must send it with the last chunk"


def _read_usage(usage: Any, record: Record) -> None:
    record.prompt_tokens = usage.prompt_tokens
    record.output_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    record.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
