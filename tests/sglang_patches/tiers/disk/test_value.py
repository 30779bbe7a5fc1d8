# SPDX-License-Identifier: Apache-2.0
"""A stored value is taken for what it is, and for nothing else: any other byte is a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_patches.tiers.disk.value import (
    DiskRef,
    Entry,
    find_fault,
    make_key,
    make_ref,
    payload_offset,
    payload_view,
    seal,
    value_bytes,
)
from sglang_patches.tiers.rows import RowShape

pytestmark = pytest.mark.sglang

FINGERPRINT = b"f" * 16
SHAPE = RowShape(num_layers=2, num_heads=3, head_dim=4, dtype="float16", element_bytes=2)


def entry_of(num_path: int = 7, num_own: int = 3, home: int = 4) -> Entry:
    path = np.arange(10, 10 + num_path, dtype="<i4").tobytes()
    return Entry(b"n" * 16, path, num_own, home)


def sealed(entry: Entry) -> tuple[np.ndarray, DiskRef]:
    """A value of random rows, and the ref of all of it."""
    value = np.zeros(value_bytes(entry.num_path, entry.num_own, SHAPE), np.uint8)
    rows = payload_view(value, entry.num_path, SHAPE)
    assert rows.shape == (entry.num_own, SHAPE.num_bytes)
    rows[:] = np.random.default_rng(0).integers(0, 256, rows.shape)
    seal(value, FINGERPRINT, entry, SHAPE)
    return value, make_ref(make_key(FINGERPRINT, entry), entry)


def fault(value: np.ndarray, ref: DiskRef, path: bytes) -> str | None:
    return find_fault(value, FINGERPRINT, ref, path, SHAPE)


@given(num_path=st.integers(1, 40), num_own=st.integers(1, 40), home=st.integers(0, 10**6))
def test_what_was_sealed_is_found_right(num_path: int, num_own: int, home: int) -> None:
    entry = entry_of(num_path, min(num_own, num_path), home)
    value, ref = sealed(entry)
    assert fault(value, ref, entry.path) is None
    assert payload_offset(num_path) % 64 == 0
    assert ref.num_tokens == entry.num_own and ref.path_len == entry.num_path


def test_any_other_bit_is_a_fault() -> None:
    entry = entry_of()
    value, ref = sealed(entry)
    for place in range(len(value)):
        for bit in (0, 7):
            spoilt = value.copy()
            spoilt[place] ^= 1 << bit
            assert fault(spoilt, ref, entry.path) is not None, place


@pytest.mark.parametrize("num_bytes", [0, 1, 100, -1])
def test_a_cut_value_is_truncated(num_bytes: int) -> None:
    value, ref = sealed(entry_of())
    assert fault(value[:num_bytes], ref, entry_of().path) == "truncated"


def test_a_value_of_something_else_is_named_by_what_differs() -> None:
    entry = entry_of()
    value, ref = sealed(entry)
    assert find_fault(value, b"g" * 16, ref, entry.path, SHAPE) == "model"
    assert fault(value, replace(ref, namespace=b"m" * 16), entry.path) == "namespace"
    other = replace(SHAPE, num_heads=4)
    assert find_fault(value, FINGERPRINT, ref, entry.path, other) == "shape"
    assert fault(value, replace(ref, home=5), entry.path) == "tokens"
    assert fault(value, ref, entry.path[:-4] + b"\0\0\0\0") == "tokens"
    assert fault(value, replace(ref, key=b"k" * 20), entry.path) == "tokens"


def test_a_beginning_of_the_path_is_enough_where_a_ref_means_a_beginning() -> None:
    entry = entry_of(num_path=7, num_own=3)
    value, whole = sealed(entry)
    front, back = whole.split(1)
    assert fault(value, front, entry.path[: 4 * front.path_len]) is None
    assert fault(value, back, entry.path) is None


@given(cuts=st.lists(st.integers(1, 19), unique=True, max_size=6))
def test_parts_of_a_ref_are_all_of_it_without_overlap(cuts: list[int]) -> None:
    entry = entry_of(num_path=25, num_own=20)
    rest = make_ref(make_key(FINGERPRINT, entry), entry)
    parts, done = [], 0
    for cut in sorted(cuts):
        front, rest = rest.split(cut - done)
        parts.append(front)
        done = cut
    parts.append(rest)
    tokens = [token for part in parts for token in range(part.start, part.stop)]
    assert tokens == list(range(20))
    assert parts[-1].path_len == 25
    assert all(part.describes(entry) for part in parts)


@pytest.mark.parametrize("at", [-1, 0, 3, 4])
def test_a_ref_is_not_cut_at_its_ends(at: int) -> None:
    ref = make_ref(b"", entry_of(num_own=3))
    with pytest.raises(ValueError, match="cannot split 3 tokens"):
        ref.split(at)


def test_a_key_differs_with_everything_that_decides_the_value() -> None:
    entry = entry_of()
    others = [
        replace(entry, namespace=b"m" * 16),
        replace(entry, path=entry.path[:-4]),
        replace(entry, num_own=2),
        replace(entry, home=5),
    ]
    keys = {make_key(FINGERPRINT, each) for each in (entry, *others)}
    keys.add(make_key(b"g" * 16, entry))
    assert len(keys) == 6
    assert make_key(FINGERPRINT, entry_of()) in keys
