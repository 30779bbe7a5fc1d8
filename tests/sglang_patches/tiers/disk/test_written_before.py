# SPDX-License-Identifier: Apache-2.0
"""A folder that an earlier release left is read: `written_before/`, written by commit 95e7062.

Four prompts of three namespaces lie in it, in the rows of a pool of 2 layers with one head of 4
channels in float32. The second prompt split the first one's node when its value was already
written. A row's bytes tell whose it is: see `row`.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.plan import SegmentTable, match_segments
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.disk.fingerprint import Fingerprint
from sglang_patches.tiers.disk.residency import DiskResidency
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.host.pool import row_shape
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.host.tier import HostTier
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.make import bits, make_pool

pytestmark = pytest.mark.sglang

WRITTEN = Path(__file__).with_name("written_before")
NUM_TOKENS = 64
PROMPTS = (
    (None, "tree", [1, 2, 3, 4, 5, 6], 0),
    (None, "tree", [1, 2, 3, 7, 8], 0),
    ("salt", "tree", [1, 2, 3, 4], 0),
    (None, "sequential", [9, 8, 7], 5),
)
"""(tenant, layout, tokens, position of the first one)"""


def row(tenant: str | None, layout: str, path: tuple[int, ...], position: int) -> bytes:
    """The bytes of a token's row: `path` ends with the token."""
    name = repr((tenant, layout, path, position)).encode()
    return hashlib.shake_128(name).digest(2 * 2 * 4 * 4)


class Restarted:
    """A cache with all tiers, as a new process opens them on a folder."""

    def __init__(self, folder: Path) -> None:
        pool = make_pool(num_tokens=NUM_TOKENS, num_layers=2, num_heads=1, head_dim=4)
        num_bytes = bits(pool, np.array([1])).shape[1]
        self.tree = KVTree()
        self.mover = HostTier(pool, NUM_TOKENS * num_bytes)
        bandwidth = Bandwidth(num_bytes)
        self.host = HostResidency(self.tree, self.mover, bandwidth)
        fingerprint = Fingerprint({"weights": "w"}, row_shape(pool))
        tier = DiskTier(fingerprint, folder, 1 << 20)
        self.disk = DiskResidency(self.tree, self.host, tier, bandwidth, "write_back")
        self.tree.tiers.append(self.host)
        self.tree.tiers.append(self.disk)

    def fetch(
        self, tenant: str | None, layout: str, tokens: list[int], position: int
    ) -> list[bytes]:
        """The rows of a prompt as they come from disk to host memory, as far as they do."""
        root = self.tree.root(Namespace(tenant, layout))
        table = SegmentTable.of_plain_prompt(np.array(tokens), position)
        on_disk = match_segments(self.tree, root, table).in_tiers[1]
        self.disk.fetch(on_disk)
        deadline = time.monotonic() + SLOWEST_S
        while self.disk.tier.num_open and time.monotonic() < deadline:
            time.sleep(0.001)
        self.disk.poll()  # also what had ended before anybody looked
        [in_host, *_] = match_segments(self.tree, root, table).in_tiers
        return [
            bytes(each)
            for node in in_host
            for each in self.mover.read(node.copies[self.host.copies.tier])
        ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of it: a server that opens a folder writes a manifest of its own."""
    return shutil.copytree(WRITTEN, tmp_path / "written")


def test_every_value_is_found_under_the_same_fingerprint(folder: Path) -> None:
    restarted = Restarted(folder)
    assert restarted.disk.tier.folder == folder / next(WRITTEN.iterdir()).name
    # What belongs to everyone is in the tree at once, what a tenant's when the tenant asks.
    assert restarted.disk.found.num_values == 1
    assert restarted.disk.tier.describe()["values"] == len(PROMPTS)
    assert restarted.disk.copies.num_tokens == 6 + 2 + 3
    restarted.disk.tier.close()


@pytest.mark.parametrize("order", [PROMPTS, PROMPTS[::-1]], ids=["in order", "backwards"])
def test_all_rows_of_all_namespaces_come_back_bit_by_bit(folder: Path, order: tuple) -> None:
    restarted = Restarted(folder)
    for tenant, layout, tokens, position in order:
        expected = [
            row(tenant, layout, tuple(tokens[: i + 1]), position + i) for i in range(len(tokens))
        ]
        assert restarted.fetch(tenant, layout, tokens, position) == expected
    assert restarted.disk.describe()["misses"] == {}
    restarted.disk.tier.close()


def test_another_tenant_finds_nothing(folder: Path) -> None:
    restarted = Restarted(folder)
    _, layout, tokens, position = PROMPTS[0]
    assert restarted.fetch("nobody", layout, tokens, position) == []
    restarted.disk.tier.close()
