# SPDX-License-Identifier: Apache-2.0
"""Headers that say which of several servers a request should go to.

A router that hashes a header, such as SMG with `--policy consistent_hashing`, sends requests with
equal keys to the same server. A prompt has several entities, and only one of them can be the key.
Here it is the one that this client has met least often: popular entities come to be cached on all
servers, rare ones on one each, and the load is even. The key says nothing else: it is a digest.

Rendezvous hashing by the votes of all roots needs the list of servers in every client, and a router
that takes a server's name. In a simulation (4 servers with room for 150 of 2,000 entities, drawn by
Zipf's law, 2,500 requests behind 1,500) it is not worth that. Entities found, and the load of the
busiest server by the mean:

    entities a request   random          votes           the rarest
    1                    56.2 %, 1.01    78.8 %, 1.51    78.8 %, 1.51
    3                    55.5 %, 1.01    59.9 %, 1.23    61.2 %, 1.02
    10                   52.0 %, 1.01    53.4 %, 1.60    52.5 %, 1.04

Where there is a picker (`depcache.picker`), which knows what each server holds, it is asked first.
It names a server, and a router that hashes keys takes no names. But it says which server answered:
so keys that lead to a server are found by trying, and only the first requests go astray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import httpx
from cachetools import LRUCache

from depcache.client.address import read_address
from depcache.errors import ConfigError
from depcache.prompt.roots import of_tenant, roots_of, shared_keys

logger = logging.getLogger("depcache.client")

HEADER = "X-SMG-Routing-Key"
"""What SMG reads. Servers ignore it."""

MAX_TRIES = 100
"""Keys that are tried for a server; of W servers a key leads to one of them by chance, 1 in W."""

MAX_COUNTED = 100_000
"""Entities whose number of requests is remembered; those met longest ago are forgotten."""


ANSWERED_HEADER = "x-smg-routed-worker-id"
"""What SMG says in replies: the URL of the server that answered."""

PICK_TIMEOUT_S = 0.5
PICK_AGAIN_S = 5.0
"""How long a picker that did not answer is left alone."""


class Routing:
    """The headers of requests. Safe to share by threads.

    picker  address of a picker, http://:KEY@host:port where it has a key; None: keys alone

    A picker that does not answer costs `PICK_TIMEOUT_S` once in `PICK_AGAIN_S`, and no request:
    meanwhile there are keys. So it is where the router does not say which server answered. Raises
    ConfigError for what is no address.
    """

    def __init__(
        self, picker: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = RoutingKeys()
        self._servers = ServerKeys()
        self._picker = self._http = None
        if picker is not None:
            try:
                url = httpx.URL(read_address(picker))
            except httpx.InvalidURL as error:
                raise ConfigError(f"the picker's address is none: {error}") from None
            self._picker = str(url.copy_with(userinfo=b""))  # the log shall not tell the key
            headers = {"Authorization": f"Bearer {url.password}"} if url.password else {}
            self._http = httpx.Client(timeout=PICK_TIMEOUT_S, headers=headers)
        self._clock = clock
        self._silent_until = clock()
        self._has_warned = False

    def headers_of(self, body: Any) -> dict[str, str]:
        """The headers for a request with this JSON body; none without dependency data in it."""
        return self._ask_picker(body) or self._keys.headers_of(body)

    def learn(self, sent: Mapping[str, str], received: Mapping[str, str]) -> None:
        """Note which server answered.

        sent, received  headers of a request and of its reply
        """
        if self._http is not None and HEADER in sent:
            self._servers.learn(sent[HEADER], received.get(ANSWERED_HEADER))

    def close(self) -> None:
        """Close the connection to the picker."""
        if self._http is not None:
            self._http.close()

    def _ask_picker(self, body: Any) -> dict[str, str]:
        if self._http is None or self._servers.is_blind or self._clock() < self._silent_until:
            return {}
        shared, tenant = shared_keys(body)
        if not shared:
            return {}
        try:
            asked = {"roots": of_tenant(shared, tenant), "shared": list(shared)}
            reply = self._http.post(f"{self._picker}/pick", json=asked)
            return {HEADER: self._servers.key_of(reply.raise_for_status().json()["server"])}
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            self._silent_until = self._clock() + PICK_AGAIN_S
            if not self._has_warned:
                self._has_warned = True
                is_reply = isinstance(error, httpx.HTTPStatusError)
                why = f"HTTP {error.response.status_code}" if is_reply else str(error)
                if why == "HTTP 401":
                    why += ", it needs its key: http://:KEY@host:port"
                logger.warning("the picker %s names no server: %s", self._picker, why)
            return {}


class ServerKeys:
    """Keys that a router sends to the servers that one means. Safe to share by threads.

    is_blind  no keys can be found, because the router does not say which server answered
    """

    def __init__(self) -> None:
        self.is_blind = False
        self._found: dict[str, str] = {}  # server -> a key that led there last time
        self._tries: dict[str, int] = {}
        self._meant: dict[str, str] = {}  # key -> server
        self._lock = threading.Lock()

    def key_of(self, server: str) -> str:
        """A key that leads to `server`, or that may."""
        with self._lock:
            key = self._found.get(server)
            if key is None:
                key = _digest(f"{server} {self._tries.get(server, 0)}")
                self._meant[key] = server
            return key

    def learn(self, key: str, answered: str | None) -> None:
        """A request with this key was answered by this server; None: the router does not say."""
        with self._lock:
            meant = self._meant.get(key)
            if meant is None or self.is_blind:  # not one of these keys
                return
            if answered is None:
                self._give_up(f"the router does not say in {ANSWERED_HEADER} which server answered")
                return
            answered = answered.rstrip("/")
            if self._found.get(meant) == key and meant != answered:
                del self._found[meant]
            self._found.setdefault(answered, key)
            if meant == answered:
                self._tries[meant] = 0
            elif meant not in self._found:
                self._meant[key] = answered
                self._tries[meant] = self._tries.get(meant, 0) + 1
                if self._tries[meant] > MAX_TRIES:
                    self._give_up(
                        f"of {MAX_TRIES} keys none leads to {meant}, but one to {answered}: start "
                        "the picker with the URLs that the router has"
                    )

    def _give_up(self, why: str) -> None:
        self.is_blind = True
        logger.warning("the picker is not asked any more: %s", why)


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
