# SPDX-License-Identifier: Apache-2.0
"""Chunks as a source, against a server in memory: requests, resumption, and what has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from depcache.errors import PromptError
from depcache.precompute import Chunk, ChunkSource, Neighbours, Precomputer, PrecomputeReport
from depcache.prompt.render import render_chunks
from tests.depcache.precompute.fake import SYSTEM_LEN, FakeCache, refused

CHUNKS = [Chunk(f"a-{n}", f"Text {n}.", document="a", number=n) for n in range(12)]


def compute(server: FakeCache, chunks=CHUNKS, **options) -> PrecomputeReport:
    source = ChunkSource(chunks, **options.pop("source", {}))
    with server.client() as client:
        options = {"request_tokens": SYSTEM_LEN + 4, "retry_delays_s": (), **options}
        job = Precomputer(source, client, **options)
        return job.run(job.plan(), num_workers=1)


def texts_of(server: FakeCache, start: int = 0) -> list[str]:
    return [path[0].strip() for paths in server.sent[start:] for path in paths]


def test_all_chunks_are_sent_once_and_many_in_a_request() -> None:
    server = FakeCache()
    report = compute(server)
    assert texts_of(server) == [chunk.text for chunk in CHUNKS]
    assert report.num_computed == report.num_wanted == len(CHUNKS)
    assert 1 < report.num_requests < len(CHUNKS)
    assert report.to_json()["chunks"] == len(CHUNKS)


def test_a_request_says_before_a_chunk_what_a_question_says() -> None:
    server = FakeCache()
    fields = {"cache_salt": "tenant"}
    compute(server, CHUNKS[:1], source={"system": "Be brief.", "fields": fields})
    asked = render_chunks(["Text 0."], "Why?", system="Be brief.")
    [body] = server.bodies
    assert body["cache_salt"] == "tenant"
    assert body["messages"][0] == asked.messages[0]
    ours, theirs = body["custom_params"], asked.extra_body["custom_params"]
    for key in ("message", "start", "lens", "rows"):
        assert ours["depcache_outline"][key] == theirs["depcache_outline"][key]
    stop = theirs["depcache_outline"]["start"] + len(asked.flat_text)
    assert body["messages"][1]["content"][:stop] == asked.messages[1]["content"][:stop]


def test_a_changed_chunk_is_computed_again_and_no_other(tmp_path: Path) -> None:
    server = FakeCache()
    state = tmp_path / "state"
    compute(server, state=state)
    assert compute(server, state=state).num_requests == 0
    num_sent = len(server.sent)
    changed = [*CHUNKS[:5], replace(CHUNKS[5], text="Another text."), *CHUNKS[6:]]
    report = compute(server, changed, state=state)
    assert texts_of(server, num_sent) == ["Another text."]
    assert (report.num_computed, report.num_unchanged) == (1, len(CHUNKS) - 1)
    new = Chunk("b", "New.")
    report = compute(server, [*changed, new], state=state)
    assert (report.num_computed, texts_of(server)[-1]) == (1, "New.")


def test_another_system_starts_anew(tmp_path: Path) -> None:
    compute(FakeCache(), state=tmp_path / "state")
    source = ChunkSource(CHUNKS, system="Be brief.")
    with FakeCache().client() as client:
        plan = Precomputer(source, client, state=tmp_path / "state").plan()
    assert "anew: system not the same as before" in plan.notes[0]
    assert plan.pending == plan.names == tuple(chunk.id for chunk in CHUNKS)


def test_a_chunk_that_the_server_refuses_is_left_out() -> None:
    server = FakeCache()

    def refuse(paths):
        return refused("bad text") if any("Text 3." in path[0] for path in paths) else None

    server.on_chat = refuse
    report = compute(server)
    assert report.failures == {"refused": 1} and report.problems[0].startswith("a-3: ")
    assert report.num_computed == len(CHUNKS) - 1


def test_a_chunk_behind_the_one_before_is_computed_behind_it() -> None:
    server = FakeCache()
    chunks = [CHUNKS[3], CHUNKS[0], CHUNKS[1], Chunk("lone", "Alone.")]
    report = compute(server, chunks, source={"behind": "previous"}, request_tokens=1000)
    assert report.num_computed == 4
    [paths] = server.sent
    texts = [tuple(text.strip() for text in path) for path in paths]
    assert texts == [("Text 1.", "Text 3."), ("Text 0.",), ("Text 0.", "Text 1."), ("Alone.",)]


def test_behind_another_chunk_a_chunk_is_computed_again(tmp_path: Path) -> None:
    server = FakeCache()
    state = tmp_path / "state"
    compute(server, source={"behind": "previous"}, state=state)
    changed = [*CHUNKS[:5], replace(CHUNKS[5], text="Another text."), *CHUNKS[6:]]
    report = compute(server, changed, source={"behind": "previous"}, state=state)
    assert (report.num_computed, report.num_unchanged) == (2, len(CHUNKS) - 2)  # and the next one
    with server.client() as client:
        plan = Precomputer(ChunkSource(changed), client, state=state).plan()
    assert "anew: source not the same as before" in plan.notes[0]


def near(number: int = 2, changed: dict[str, tuple[Chunk, ...]] | None = None) -> Neighbours:
    """Each chunk behind those after it; the last ones behind fewer."""
    of = {chunk.id: tuple(CHUNKS[n + 1 : n + 1 + number]) for n, chunk in enumerate(CHUNKS)}
    return Neighbours({**of, **(changed or {})}, number)


def test_a_chunk_behind_similar_ones_is_a_row_of_a_fused_request() -> None:
    server = FakeCache()
    report = compute(server, source={"behind": near()}, request_tokens=1000)
    assert (report.num_computed, report.num_requests) == (len(CHUNKS), 1)
    [body] = server.bodies
    asked = render_chunks([chunk.text for chunk in CHUNKS], "Why?")
    assert texts_of(server) == [chunk.text for chunk in CHUNKS]
    params = body["custom_params"]
    assert (params["depcache_recompute"], params["depcache_pin"]) == (0.0, True)
    assert params["depcache_behind"][0] == ["\n\nText 1.", "\n\nText 2."]
    assert params["depcache_behind"][-2:] == [["\n\nText 11."], None]
    stop = asked.messages[1]["content"].index("Question")
    assert body["messages"][1]["content"][:stop] == asked.messages[1]["content"][:stop]


def test_of_similar_chunks_other_neighbours_are_computed_again_and_no_others(
    tmp_path: Path,
) -> None:
    server, state = FakeCache(), tmp_path / "state"
    compute(server, source={"behind": near()}, state=state)
    assert compute(server, source={"behind": near()}, state=state).num_requests == 0
    changed = near(changed={CHUNKS[3].id: (CHUNKS[9], CHUNKS[4])})
    report = compute(server, source={"behind": changed}, state=state)
    assert (report.num_computed, report.num_unchanged) == (1, len(CHUNKS) - 1)
    with server.client() as client:
        for behind in (near(3), replace(near(), by="file")):
            plan = Precomputer(ChunkSource(CHUNKS, behind=behind), client, state=state).plan()
            assert len(plan.pending) == len(CHUNKS)
            assert plan.notes == ("starting anew: similar not the same as before",)


def test_what_chunks_may_be_computed_behind_is_named() -> None:
    with pytest.raises(PromptError, match=r"'similar' is nothing that .* one of alone, previous"):
        ChunkSource(CHUNKS, behind="similar")


def test_equal_texts_are_computed_once() -> None:
    server = FakeCache()
    twins = [Chunk("1", "Same."), Chunk("2", "Same.")]
    assert compute(server, twins).num_computed == 2
    assert texts_of(server) == ["Same."]


def test_too_much_for_the_server_is_told_in_chunks() -> None:
    server = FakeCache(capacity_tokens=2)
    with server.client() as client:
        plan = Precomputer(ChunkSource(CHUNKS), client).plan()
    assert "about 2 chunks would fit" in plan.estimate.warning
    assert plan.estimate.to_json()["chunks"] == len(CHUNKS)
