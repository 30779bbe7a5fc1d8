# SPDX-License-Identifier: Apache-2.0
"""What all programs share: made-up facts, two questions, and clients that keep what was said.

Imported in the environments of the frameworks, which have DepCache's base install and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import Any

import depcache

URL = os.environ.get("SERVER_URL", "") + "/v1"
MODEL = "depcache-tiny"
READS_FACTS = os.environ.get("READS_FACTS", "1") == "1"
"""False: the same calls with nothing recognised, which is what a stock server gets."""

FACTS = [
    ("Hedda Kvist", "born in", "Orrfors"),
    ("Hedda Kvist", "built", "Salt Lock"),
    ("Hedda Kvist", "studied at", "Tarnow College"),
    ("Hedda Kvist", "sister of", "Emil Kvist"),
    ("Emil Kvist", "owns", "Kvist Foundry"),
    ("Emil Kvist", "born in", "Orrfors"),
    ("Kvist Foundry", "located in", "Vell"),
    ("Kvist Foundry", "supplies", "Salt Lock"),
    ("Salt Lock", "part of", "Ambra Canal"),
    ("Orrfors", "lies on", "Ambra Canal"),
    ("Orrfors", "located in", "Vell"),
    ("Ambra Canal", "ends in", "Lake Siv"),
    ("Tarnow College", "located in", "Vell"),
    ("Tarnow College", "led by", "Ines Marto"),
    ("Ines Marto", "born in", "Vell"),
    ("Ines Marto", "friend of", "Hedda Kvist"),
]
ENTITIES = list(dict.fromkeys(name for head, _, tail in FACTS for name in (head, tail)))
QUESTIONS = ["Which canal does the birthplace of Hedda Kvist lie on?", "Who leads Tarnow College?"]
KEYWORDS = [["Hedda Kvist", "Orrfors", "Ambra Canal"], ["Tarnow College", "Hedda Kvist"]]
CHOSEN = [[0, 9, 1, 8, 10, 11, 3], [2, 13, 12, 15, 0, 1, 3]]
"""Facts for each question, by number, as a retriever would find them; four are in both."""


def sentence(fact: tuple[str, str, str]) -> str:
    return f"{fact[0]} {fact[1]} {fact[2]}."


def embed(text: str, dimension: int = 64) -> list[float]:
    """A vector in which texts with common words are near each other."""
    vector = [1e-3] * dimension
    for word in re.findall(r"[a-z]+", text.lower()):
        vector[int(hashlib.sha1(word.encode()).hexdigest(), 16) % dimension] += 1.0
    norm = sum(value * value for value in vector) ** 0.5
    return [value / norm for value in vector]


_said: list[dict[str, Any]] = []


def clients(framework: str, **options: Any) -> dict[str, Any]:
    """The clients of `depcache.clients`, which keep every chat and its answer.

    options  of those that find something
    """
    made = depcache.clients(framework, auto=READS_FACTS, **(options if READS_FACTS else {}))
    for outer in made.values():
        for client in outer.values() if isinstance(outer, dict) else [outer]:
            keep_what_is_said(client)
    return made


def keep_what_is_said(client: Any) -> None:
    """Note what goes through an httpx client of either kind."""

    def note(response: Any) -> None:
        sent = json.loads(response.request.content)
        answer = response.json()
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        _said.append(
            {
                "status": response.status_code,
                "messages": sent.get("messages"),
                "prompt_tokens": (answer.get("usage") or {}).get("prompt_tokens"),
                "cached_tokens": details.get("cached_tokens", 0),
                "report": (answer.get("metadata") or {}).get("depcache"),
                "error": answer.get("message") if response.status_code != 200 else None,
            }
        )

    def of_sync(response: Any) -> None:
        response.read()
        note(response)

    async def of_async(response: Any) -> None:
        await response.aread()
        note(response)

    is_async = hasattr(client, "aclose")
    client.event_hooks = {"response": [of_async if is_async else of_sync]}


def tell(name: str, calls: str = "sync") -> None:
    """Print what was said since the last time, for the harness."""
    print("SAID " + json.dumps({"name": name, "calls": calls, "said": _said}), flush=True)
    _said.clear()


def fail(why: str) -> None:
    sys.exit(why)
