# SPDX-License-Identifier: Apache-2.0
"""What the HTTP process knows of the rows of fused requests, and how it asks the scheduler's cache.

One for each TokenizerManager: a forecast of which rows come again, and the copies that flat prompts
have left (`depcache.select.variants`).
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any

import numpy as np

from depcache.cache.radix import to_key
from depcache.prompt.behind import Behind, ids_of
from depcache.prompt.forest import Forest, IntArray
from depcache.select.cost import ReuseForecast
from depcache.select.variants import Variants
from sglang_patches.http.ask import ask


def row_keys(
    tokens: IntArray,
    forest: Forest,
    tenant: str | None,
    behind: Behind | None = None,
    lora_id: str | None = None,
) -> list[bytes]:
    """What tells each tree of a prompt from all others: a digest of whose it is and its tokens.

    The system's and those that it stands behind among them. `lora_id` is of its adapter.
    """
    head = blake2b(repr((tenant, lora_id)).encode(), digest_size=16)
    head.update(to_key(tokens[: forest.system_len]))
    starts = forest.structure.tree_starts
    keys: list[bytes] = []
    stops = [*starts[1:], forest.task_start]
    above = behind or (None,) * len(starts)
    for start, stop, ids in zip(starts, stops, above, strict=True):
        row = head.copy()
        for chunk in ids_of(ids):
            row.update(b"%d:" % len(chunk) + to_key(np.array(chunk, np.int64)))
        row.update(to_key(tokens[start:stop]))
        keys.append(row.digest())
    return keys


class Looks:
    """Looks into the scheduler's cache, many in one question while another is on its way.

    forecast  of the rows that were asked for in this process
    variants  copies of rows that flat prompts have left
    """

    def __init__(self, manager: Any) -> None:
        self.forecast = ReuseForecast()
        self.variants = Variants()
        self._manager = manager
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def look(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """What `control` finds of a prompt: {"missing_by_tree": [tokens], "prefix": tokens}."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        return await future

    async def _ask(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                question = {"ask": "missing", "prompts": [prompt for prompt, _ in asked]}
                found: list[Any] = (await ask(self._manager, question))["reply"]["found"]
            except Exception as error:
                found = [error] * len(asked)
            for (_, future), each in zip(asked, found, strict=True):
                if future.done():
                    continue
                if isinstance(each, Exception):
                    future.set_exception(each)
                else:
                    future.set_result(each)


_LOOKS = "depcache_looks"  # attribute of a TokenizerManager


def looks_of(manager: Any) -> Looks:
    """Those of a TokenizerManager."""
    looks = getattr(manager, _LOOKS, None)
    if looks is None:
        looks = Looks(manager)
        setattr(manager, _LOOKS, looks)
    return looks
