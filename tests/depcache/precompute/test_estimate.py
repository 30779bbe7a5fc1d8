# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of an estimate, against sums written out."""

import math

from hypothesis import given
from hypothesis import strategies as st

from depcache.precompute import GraphSource
from depcache.precompute.estimate import Sample, make_estimate, read_tiers, spread

WORDS = GraphSource.words
counts = st.integers(0, 10**6)


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=50),
    device=st.integers(1, 10**5),
    host=st.one_of(st.none(), st.integers(1, 10**6)),
    disk_bytes=st.one_of(st.none(), st.integers(1, 10**9)),
)
def test_an_estimate_over_all_entities_is_their_sum(sizes, device, host, disk_bytes):
    tiers = {"device": {"tokens": 7, "bytes_per_token": 64, "capacity_tokens": device}}
    if host is not None:
        tiers["host"] = {"tokens": 0, "capacity_tokens": host}
    if disk_bytes is not None:
        tiers["disk"] = {"tokens": 0, "capacity_bytes": disk_bytes}
    sample = sum((Sample(1, 3 * size, size, size // 2) for size in sizes), Sample())
    estimate = make_estimate(WORDS, len(sizes), 0, sample, {"tiers": tiers})
    assert estimate.is_exact
    assert estimate.num_tokens == sum(sizes)
    assert estimate.num_bytes == 64 * sum(sizes)
    room = device + (host or 0) + (disk_bytes or 0) // 64
    assert estimate.capacity_tokens == room
    assert bool(estimate.warning) == (sum(sizes) > room)
    assert estimate.num_fitting * sum(sizes) <= max(room, sum(sizes)) * len(sizes)
    assert estimate.to_json()["warning"] == estimate.warning


@given(num_tokens=counts, num_sampled=st.integers(1, 32), num_entities=st.integers(32, 10**5))
def test_a_sample_stands_for_all(num_tokens, num_sampled, num_entities):
    sample = Sample(num_sampled, 0, num_tokens, num_tokens)
    estimate = make_estimate(WORDS, num_entities, 0, sample, {})
    mean = num_tokens / num_sampled
    assert math.isclose(estimate.num_tokens, mean * num_entities, rel_tol=1e-9, abs_tol=1)
    assert estimate.num_cached <= estimate.num_tokens
    assert (estimate.num_bytes, estimate.capacity_tokens, estimate.warning) == (None, None, "")


@given(size=st.integers(0, 500), count=st.integers(1, 40))
def test_a_sample_is_spread_over_the_order(size, count):
    items = [str(i) for i in range(size)]
    chosen = list(map(int, spread(items, count)))
    assert len(set(chosen)) == len(chosen) == min(size, count)
    assert chosen == sorted(chosen)
    gaps = [b - a for a, b in zip([-1, *chosen], [*chosen, size], strict=True)]
    assert max(gaps) <= math.ceil(size / count) + 1


def test_bytes_per_token_are_known_from_what_is_held_where_they_are_not_told():
    tiers, per_token = read_tiers({"tiers": {"device": {"tokens": 3, "bytes": 300}}})
    assert per_token == 100
    assert tiers[0].capacity_tokens is None
    assert read_tiers({"tiers": {"device": {"tokens": 0, "bytes": 0}}})[1] is None


def test_the_warning_says_how_many_would_fit():
    stats = {"tiers": {"device": {"tokens": 0, "bytes_per_token": 1, "capacity_tokens": 500}}}
    estimate = make_estimate(WORDS, 100, 0, Sample(10, 0, 100, 0), stats)
    assert estimate.num_fitting == 50
    assert "1,000 tokens" in estimate.warning
    assert "about 50 entities" in estimate.warning
