# SPDX-License-Identifier: Apache-2.0
"""The routing key: which of several servers a request should go to.

A router that hashes a header, such as SMG with `--policy consistent_hashing`, sends requests with
equal keys to the same server. A prompt has several entities, and only one of them can be the key.
Here it is the one that this client has met least often: popular entities come to be cached on all
servers, rare ones on one each, and the load is even. The key says nothing else: it is a digest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from cachetools import LRUCache

from depcache.prompt.outline import PREFIX

HEADER = "X-SMG-Routing-Key"
"""What SMG reads. Servers ignore it."""

MAX_COUNTED = 100_000
"""Entities whose number of requests is remembered; those met longest ago are forgotten."""


class RoutingKeys:
    """Chooses keys. Safe to share by threads.

    counts  digest of an entity -> prompts that had it
    """

    def __init__(self, max_counted: int = MAX_COUNTED) -> None:
        self.counts: LRUCache[str, int] = LRUCache(max_counted)
        self._lock = threading.Lock()

    def headers_of(self, body: Any) -> dict[str, str]:
        """The header for a request with this JSON body; none without dependency data in it."""
        key = self.key_of(roots_of(body))
        return {} if key is None else {HEADER: key}

    def key_of(self, roots: Iterable[str]) -> str | None:
        """The key of a prompt with these root entities, None without any; counts them."""
        names = {_digest(root) for root in roots}
        if not names:
            return None
        with self._lock:
            # Among those met equally often, every client takes the same one.
            key = min(names, key=lambda name: (self.counts.get(name, 0), name))
            for name in names:
                self.counts[name] = self.counts.get(name, 0) + 1
        return key


def roots_of(body: Any) -> list[str]:
    """What the rows of a request begin with: entities, tables, or passages as a whole.

    body  JSON of a chat, a completion or `/generate`. What is not as the wire has it gives no
          roots: the server says what is wrong with it.
    """
    try:
        return _roots_of(body)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []


def _roots_of(body: Mapping[str, Any]) -> list[str]:
    params = body.get("custom_params") or body["sampling_params"]["custom_params"]
    outline = params.get(f"{PREFIX}outline")
    if outline is None:
        return _roots_of_ids(body["input_ids"], params)
    lens, rows = outline["lens"], outline["rows"]
    text = _text_of(body, outline.get("message"))
    firsts = [0, *accumulate(rows)][: len(rows)]  # the first element of each row
    starts = list(accumulate(lens, initial=outline["start"]))
    parents = outline.get("parents") or [-1] * len(rows)
    spans = (
        (starts[first], starts[first + 1])
        for first, parent in zip(firsts, parents, strict=True)
        if parent == -1
    )
    found = (text[start:stop].strip() for start, stop in spans)
    return list(dict.fromkeys(root for root in found if root))


def _roots_of_ids(ids: list[int], params: Mapping[str, Any]) -> list[str]:
    lens = params[f"{PREFIX}segment_lens"]
    starts = accumulate(lens, initial=params.get(f"{PREFIX}system_len", 0))
    parents = params[f"{PREFIX}segment_parents"]
    return [
        str(ids[start : start + length])
        for start, length, parent in zip(starts, lens, parents, strict=False)
        if parent == -1
    ]


def _text_of(body: Mapping[str, Any], message: int | None) -> str:
    if message is None:
        return body["prompt"] if "prompt" in body else body["text"]
    content = body["messages"][message]["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def _digest(root: str) -> str:
    return blake2b(root.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
