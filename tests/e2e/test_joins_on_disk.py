# SPDX-License-Identifier: Apache-2.0
"""The KV of a table is decided by the set that it sees: what two prompts left on disk is compared.

Each prompt is computed from an empty cache, so nothing of one is in the other.
"""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import on_disk
from tests.e2e.on_disk import Start, values_in
from tests.e2e.served import Served
from tests.helpers.ends import SLOWEST_S
from tests.helpers.joined_prompts import JoinedPrompt, Table, random_schema
from tests.helpers.prompts import random_tokens

pytestmark = pytest.mark.sglang

start = on_disk.start
NUM_SCHEMAS = 6
MOST_OFF = 1e-5
"""In parts of the largest value, float32."""
# Written from the layout that `sglang_patches/tiers/disk/value.py` describes.
HEADER = struct.Struct("<8sII 16s16s qII III 12s Q16s 16s")
ALIGNMENT = 64
Rows = dict[tuple[bytes, tuple[int, ...]], np.ndarray]


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    return {}


def rows_in(folder: Path) -> Rows:
    """KV of each token, float32, by what its root is and the tokens of its way."""
    rows: Rows = {}
    for file in values_in(folder):
        value = file.read_bytes()
        header = HEADER.unpack_from(value)
        namespace, num_path, num_own = header[4], header[6], header[7]
        path = np.frombuffer(value, "<i4", num_path, HEADER.size)
        offset = -(-(HEADER.size + 4 * num_path) // ALIGNMENT) * ALIGNMENT
        own = np.frombuffer(value, "<f4", offset=offset).reshape(num_own, -1)
        for place, row in enumerate(own, num_path - num_own + 1):
            rows[namespace, tuple(path[:place].tolist())] = row
    return rows


def compute(served: Served, folder: Path, prompt: JoinedPrompt) -> Rows:
    """What an empty server keeps of a prompt."""
    served.engine.flush()
    deadline = time.monotonic() + SLOWEST_S
    while values_in(folder):  # files go a little later
        assert time.monotonic() < deadline
        time.sleep(0.02)
    result = served.ask(prompt, 1)
    assert result["meta_info"]["depcache"]["missed"] == prompt.num_context
    served.engine.wait_until_stored()
    return rows_in(folder)


def rows_of(rows: Rows, table: list[int]) -> Rows:
    """Those of one table, from its third token on: tables begin alike."""
    found: Rows = {}
    for (namespace, way), row in rows.items():
        ends = [way[-num:] == tuple(table[:num]) for num in range(3, len(table) + 1)]
        if any(ends):
            found[namespace, way] = row
    assert len(found) == len(table) - 2
    return found


def distance(mine: Rows, theirs: Rows) -> float:
    """How far the KV of a table is apart, token by token, in parts of the largest value."""
    both = [
        np.stack([rows[key] for key in sorted(rows, key=lambda key: len(key[1]))])
        for rows in (mine, theirs)
    ]
    return float(np.abs(both[0] - both[1]).max() / np.abs(both[0]).max())


def two_prompts(rng: random.Random) -> tuple[list[Table], int, JoinedPrompt, JoinedPrompt]:
    """A schema, a table of it that is joined, and two prompts in which it sees the same."""
    while True:
        tables, system = random_schema(rng, 9), random_tokens(rng, 4)
        present = rng.sample(range(9), 6)
        first = JoinedPrompt(system, tables, present, random_tokens(rng, 3))
        if first.joins:
            break
    table = first.order[first.joins[-1][0]]
    unseen = [each for each in range(9) if each != table and each not in tables[table][1]]
    company = rng.sample(unseen, rng.randint(0, len(unseen)))
    present = [table, *first.sees[table], *company]
    rng.shuffle(present)
    return tables, table, first, JoinedPrompt(system, tables, present, random_tokens(rng, 3))


def test_kv_of_a_table_is_the_same_wherever_it_sees_the_same(start: Start, tmp_path: Path) -> None:
    rng = random.Random(5)
    num_same = num_other = 0
    with start(tmp_path) as served:
        for _ in range(NUM_SCHEMAS):
            tables, joined, first, second = two_prompts(rng)
            assert first.sees[joined] == second.sees[joined] and len(first.sees[joined]) > 1
            before, after = (compute(served, tmp_path, each) for each in (first, second))
            for table in set(first.sees) & set(second.sees):
                mine, theirs = (rows_of(rows, tables[table][0]) for rows in (before, after))
                is_same = first.sees[table] == second.sees[table]
                assert (mine.keys() == theirs.keys()) == is_same
                assert bool(mine.keys() & theirs.keys()) == is_same
                assert (distance(mine, theirs) <= MOST_OFF) == is_same
                num_same += is_same
                num_other += not is_same
    assert num_same > 2 * NUM_SCHEMAS and num_other >= 2
