# SPDX-License-Identifier: Apache-2.0
"""Headers that say which of several servers a request should go to.

A router that hashes a header, such as SMG with `--policy consistent_hashing`, sends requests with
equal keys to the same server. A prompt has several entities, and only one of them can be the key.
Here it is the one that this client has met least often: popular entities come to be cached on all
servers, rare ones on one each, and the load is even. The key says nothing else: it is a digest.

Where there is a picker (`depcache.picker`), which knows what each server holds, it is asked first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import httpx
from cachetools import LRUCache

from depcache.client.address import read_address
from depcache.prompt.roots import root_keys, roots_of

logger = logging.getLogger("depcache.client")

HEADER = "X-SMG-Routing-Key"
"""What SMG reads. Servers ignore it."""

MAX_COUNTED = 100_000
"""Entities whose number of requests is remembered; those met longest ago are forgotten."""


TARGET_HEADER = "X-SMG-Target-Worker"
"""What SMG reads as well: the URL of the server itself."""

PICK_TIMEOUT_S = 0.5
PICK_AGAIN_S = 5.0
"""How long a picker that did not answer is left alone."""


class Routing:
    """The headers of requests. Safe to share by threads.

    picker  address of a picker; None: keys alone

    A picker that does not answer costs `PICK_TIMEOUT_S` once in `PICK_AGAIN_S`, and no request:
    meanwhile there are keys. Raises ConfigError for what is no address.
    """

    def __init__(
        self, picker: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = RoutingKeys()
        self._picker = None if picker is None else read_address(picker)
        self._http = None if picker is None else httpx.Client(timeout=PICK_TIMEOUT_S)
        self._clock = clock
        self._silent_until = clock()
        self._has_warned = False

    def headers_of(self, body: Any) -> dict[str, str]:
        """The headers for a request with this JSON body; none without dependency data in it."""
        return self._ask_picker(body) or self._keys.headers_of(body)

    def close(self) -> None:
        """Close the connection to the picker."""
        if self._http is not None:
            self._http.close()

    def _ask_picker(self, body: Any) -> dict[str, str]:
        if self._http is None or self._clock() < self._silent_until:
            return {}
        roots = list(root_keys(body))
        if not roots:
            return {}
        try:
            reply = self._http.post(f"{self._picker}/pick", json={"roots": roots})
            return {TARGET_HEADER: reply.raise_for_status().json()["server"]}
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            self._silent_until = self._clock() + PICK_AGAIN_S
            if not self._has_warned:
                self._has_warned = True
                is_reply = isinstance(error, httpx.HTTPStatusError)
                why = f"HTTP {error.response.status_code}" if is_reply else str(error)
                logger.warning("the picker %s names no server: %s", self._picker, why)
            return {}


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


def _digest(root: str) -> str:
    return blake2b(root.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
