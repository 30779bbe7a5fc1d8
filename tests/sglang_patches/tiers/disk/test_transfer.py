# SPDX-License-Identifier: Apache-2.0
"""What comes of a transfer counts only while its whole run means what it meant at the start."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.cache import KVTree
from depcache.cache.radix import to_key
from sglang_patches.tiers.disk.transfer import Transfer

pytestmark = pytest.mark.sglang


def begin() -> tuple[KVTree, Transfer]:
    """A transfer of one node of 4 tokens at position 3."""
    tree = KVTree()
    slots = np.arange(4)
    node = tree.insert(tree.root(None), to_key(np.arange(10, 14)), slots, 3).node
    return tree, Transfer([node], slots, 3, owns_slots=True)


def test_a_node_that_was_split_is_still_the_run() -> None:
    tree, transfer = begin()
    [node] = transfer.nodes
    upper = tree.split(node, 1)
    assert not transfer.is_valid, "the rest alone begins at another position"
    transfer.nodes.insert(0, upper)
    assert transfer.is_valid


def test_a_node_that_went_or_was_computed_at_another_position_is_not() -> None:
    tree, transfer = begin()
    [node] = transfer.nodes
    assert transfer.is_valid
    node.home = 7
    assert not transfer.is_valid
    node.home = 3
    tree.forget(node)
    assert not transfer.is_valid


def test_a_void_transfer_is_of_no_use_whatever_became_of_its_nodes() -> None:
    _, transfer = begin()
    transfer.is_void = True
    assert not transfer.is_valid
