# SPDX-License-Identifier: Apache-2.0
"""The simulation of tokens against examples counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depcache.errors import ConfigError
from eval.chunks.simulate import count_chunks, count_prefix, count_served, simulate, sort_chunks
from eval.chunks.streams import STREAMS, make_stream

LENS = {"a": 100, "b": 200, "c": 300}


def test_a_prefix_cache_computes_from_the_first_difference_on() -> None:
    requests = [("a", "b"), ("a", "b"), ("a", "c"), ("b", "a")]
    assert count_prefix(requests, LENS) == [60 + 300 + 25, 25, 300 + 25, 300 + 25]


def test_a_cache_of_few_tokens_forgets() -> None:
    assert count_prefix([("a",), ("c",), ("a",)], LENS, 350)[2] == 60 + 100 + 25


def test_chunks_are_reused_in_another_order() -> None:
    requests = [("a",), ("b",), ("c",), ("c", "b", "a"), ("a", "c")]
    # First chunks of plain requests are nodes; then the task runs twice for r of the others.
    counts = count_chunks(requests, LENS, 0.15)
    assert counts == [185, 225, 325, 30 + 15 + 50, 45 + 50]
    assert count_chunks(requests, LENS, 0.0)[3:] == [25, 25]


def test_what_is_met_for_the_first_time_is_served_plain() -> None:
    requests = [("a", "b"), ("b", "c"), ("c", "a")]
    assert count_chunks(requests, LENS, 0.3)[0] == count_prefix(requests, LENS)[0]


@pytest.mark.parametrize(
    ("stream", "share"),
    [*((stream, 0.0) for stream in STREAMS), ("file order", 0.15), ("file order", 0.3)],
)
def test_fresh_requests_and_plain_reuse_stay_near_a_prefix_cache(stream: str, share: float) -> None:
    names = [f"c{i}" for i in range(60)]
    lens = {name: 50 + i for i, name in enumerate(names)}
    questions = [tuple(names[(i * 7 + k * 11) % 60] for k in range(5)) for i in range(60)]
    requests = make_stream(questions, stream, 300)
    ours, theirs = sum(count_chunks(requests, lens, share)), sum(count_prefix(requests, lens))
    assert ours <= 1.05 * theirs


def test_a_server_settles_rows_that_come_again_and_reuses_them_in_any_order() -> None:
    requests = [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]
    counts = count_served(requests, LENS, 0.0)
    assert counts[0] == count_prefix(requests, LENS)[0]
    assert counts[2:] == [25, 25]


def test_a_server_that_keeps_patches_computes_a_share_once() -> None:
    requests = [("a", "b"), ("b", "a"), *3 * [("a", "b", "c")], ("a", "b")]
    cold = [*requests[:2], ("c",), ("c", "b"), ("b", "c")]
    counts = count_served([*cold, *requests[2:]], LENS, 0.1, patches=True)
    assert counts[-4:] == [20 + 30 + 25, 25, 25, 25]  # the last one begins like the others
    assert count_served(cold, LENS, 0.0, patches=True) == count_served(cold, LENS, 0.0)


@pytest.mark.parametrize("stream", [each for each in STREAMS if each != "paraphrased"])
@pytest.mark.parametrize("share", [0.05, 0.15, 0.3])
def test_a_server_computes_little_more_than_a_prefix_cache_on_repeats(
    stream: str, share: float
) -> None:
    names = [f"c{i}" for i in range(400)]
    lens = {name: 50 + i for i, name in enumerate(names)}
    questions = [tuple(names[(i * 7 + k * 11) % 400] for k in range(8)) for i in range(200)]
    requests = make_stream(questions, stream, 1000)
    ours = sum(count_served(requests, lens, share))
    assert ours <= 1.05 * sum(count_prefix(requests, lens))


def test_sorting_puts_what_is_frequent_first() -> None:
    assert sort_chunks([("a", "b"), ("b", "c"), ("c", "b")])[0] == ("b", "a")


def test_streams_are_the_same_each_time() -> None:
    requests = [("a", "b"), ("b", "c"), ("c", "a")]
    assert make_stream(requests, "file order", 9) == requests
    for stream in STREAMS[1:]:
        first = make_stream(requests, stream, 50)
        assert first == make_stream(requests, stream, 50) and len(first) == 50
        assert all(len(set(each)) == len(each) for each in first)


def test_a_folder_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no requests"):
        simulate(tmp_path)
    import gzip

    chunks = [{"cid": i, "words": 50 + i} for i in range(9)]
    with gzip.open(tmp_path / "retrieval_nq_chunks.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(chunk) + "\n" for chunk in chunks)
    requests = [{"chunks": [i % 9, (i + 3) % 9]} for i in range(20)]
    text = "".join(json.dumps(request) + "\n" for request in requests)
    (tmp_path / "retrieval_nq_requests.jsonl").write_text(text)
    rows = simulate(tmp_path, quick=True)
    assert {row["stream"] for row in rows} == set(STREAMS)
    assert all(0 < row["share"] <= 1.35 for row in rows)
    assert {row["to_prefix"] for row in rows if row["system"] == "prefix"} == {1.0}
