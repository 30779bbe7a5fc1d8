# SPDX-License-Identifier: Apache-2.0
"""The same recorded prompts on real servers: what the second question computes no more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx

from depcache.client.transport import DepCacheTransport
from depcache.errors import ServerError
from eval.recognise.frameworks import read_requests
from eval.servers import flush, serve

POOL_TOKENS = 60_000
TIMEOUT_S = 600.0
REUSED = ("shared", "shifted", "loaded", "tail")


def measure_served(folder: Path, model: str) -> list[dict[str, Any]]:
    """Rows {"prompts", "tokens", "sglang_percent", "depcache_percent", "is_read"}.

    The percentage is of the second question's tokens: those that a stock server takes from its
    prefix cache, and those that DepCache takes from any tier. Each pair finds an empty cache.
    `is_read` says whether facts were found in both prompts.
    """
    pairs = {file.stem: read_requests(file)[:2] for file in sorted(folder.glob("*.json"))}
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as logs:
        found = [_ask_all(model, pairs, Path(logs) / "log", stock=stock) for stock in (False, True)]
    ours, theirs = found
    return [
        {
            "prompts": name,
            "tokens": theirs[name]["tokens"],
            "sglang_percent": theirs[name]["percent"],
            "depcache_percent": ours[name]["percent"],
            "is_read": ours[name]["is_read"],
        }
        for name in pairs
    ]


def _ask_all(
    model: str, pairs: dict[str, list[Any]], log: Path, *, stock: bool
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    transport = None if stock else DepCacheTransport()
    with (
        serve(model, log, pool_tokens=POOL_TOKENS, settings={}, stock=stock) as url,
        httpx.Client(base_url=url, transport=transport, timeout=TIMEOUT_S) as client,
    ):
        for name, pair in pairs.items():
            flush(url)
            replies = [_ask(client, messages) for messages in pair]
            reports = [(each.get("metadata") or {}).get("depcache") for each in replies]
            usage = replies[-1]["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            report = reports[-1]
            if report is not None:
                cached = sum(report[source] for source in REUSED)
            found[name] = {
                "tokens": usage["prompt_tokens"],
                "percent": round(100 * cached / usage["prompt_tokens"], 1),
                "is_read": all(each is not None for each in reports),
            }
    return found


def _ask(client: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "default", "messages": messages, "max_tokens": 1, "temperature": 0}
    reply = client.post("/v1/chat/completions", json=body)
    if not reply.is_success:
        raise ServerError(f"a recorded prompt was refused: {reply.text}")
    return reply.json()
