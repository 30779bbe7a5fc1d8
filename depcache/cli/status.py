# SPDX-License-Identifier: Apache-2.0
"""`depcache status`: what a running server reused so far, and what it holds, in ten lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from depcache.cli.ask import ApiKey, AsJson, Server
from depcache.cli.output import make_console, make_grid, print_json
from depcache.client.client import DEFAULT_URL, Client


def status(
    server: Server = DEFAULT_URL,
    api_key: ApiKey = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show every seam, hook, counter and setting too."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a running server reused, what its cache holds, and whether all is in place."""
    with Client(server, api_key, timeout_s=30.0) as client:
        answer = client.status()
    if as_json:
        print_json(answer)
        return
    table = make_grid(2)
    for name, text in summarize(answer):
        style = "bold" if name == "reused" else "red" if name in ("missing", "problem") else ""
        table.add_row(name, Text(text, style))
    if verbose:
        table.add_row("", "")
        for name, value in answer.items():
            rows = value.items() if isinstance(value, dict) else [(None, value)]
            for inner, shown in rows:
                label = name if inner is None else f"{name}.{inner}"
                text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
                table.add_row(Text(label), Text(text))
    make_console().print(table, soft_wrap=False)


def summarize(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each line, from the body of GET /depcache/status; a problem adds one."""
    cache = answer.get("cache") or {}
    yield from _requests(cache.get("tokens") or {})
    yield "device", _tier(cache)
    for name in ("host", "disk"):
        tier = cache.get(name)
        yield name, _tier(tier) if tier else "off"
    if "eviction_policy" in cache:
        yield "eviction", cache["eviction_policy"]
    yield "server", f"depcache {answer.get('version')} in sglang {answer.get('sglang_version')}"
    yield "attention", f"{answer.get('attention_backend')}, plan {answer.get('attention_plan')}"
    kinds = {kind: answer.get(kind) or {} for kind in ("seams", "hooks")}
    counts = [f"{sum(map(bool, of.values()))} of {len(of)} {kind}" for kind, of in kinds.items()]
    yield "in place", ", ".join(counts)
    missing = [name for found in kinds.values() for name, is_there in found.items() if not is_there]
    if missing:
        yield "missing", ", ".join(missing)
    for problem in answer.get("problems") or []:
        yield "problem", str(problem)


def _requests(tokens: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    context = sum(tokens.get(name, 0) for name in ("shared", "shifted", "loaded"))
    before = context + tokens.get("missed", 0)
    prompts = before + tokens.get("plain", 0)
    if prompts:
        reused = context + tokens.get("tail", 0)
        share = f"; {context / before:.0%} of what stands before the task" if before else ""
        yield "reused", f"{reused / prompts:.0%} of {prompts:,} prompt tokens{share}"
    else:
        yield "reused", "nothing yet: no prompt with facts was served"
    kinds = {"requests": "with facts", "plain_requests": "plain", "rejected_requests": "rejected"}
    counts = [f"{tokens[name]:,} {kind}" for name, kind in kinds.items() if name in tokens]
    yield "requests", ", ".join(counts) or "unknown"


def _tier(tier: Mapping[str, Any]) -> str:
    """What a tier holds, of what it can hold; only what the server says of it."""
    parts = []
    if tier.get("cached_tokens") is not None:
        room = tier.get("capacity_tokens")
        parts.append(f"{tier['cached_tokens']:,} tokens" + (f" of {room:,}" if room else ""))
    if tier.get("nodes") is not None:
        parts.append(f"{tier['nodes']:,} nodes")
    if tier.get("used_bytes") is not None:
        parts.append(f"{tier['used_bytes'] / 1e9:.2f} GB")
    if tier.get("evicted_tokens") is not None:
        parts.append(f"{tier['evicted_tokens']:,} tokens evicted")
    return ", ".join(parts) or "on"
