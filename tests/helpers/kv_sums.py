# SPDX-License-Identifier: Apache-2.0
"""Lets a scheduler say what the KV of its cached nodes is, token by token.

Named in DEPCACHE_TESTS_PREPARE, it is imported in every process of the engine.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from depcache.cache import Node
from depcache.cache.radix import to_key, to_tokens
from sglang_patches.http import control

QUESTION = "kv_sums"


def _path(node: Node) -> bytes:
    """The tokens above a node, and what it stands behind."""
    keys: list[bytes] = []
    above = node.parent
    while above is not None:
        keys.append(above.key)
        above = above.parent
    return repr(node.root.namespace).encode() + node.root.behind + b"".join(reversed(keys))


def _answer(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Digest of a token's way to it -> digest and sum of its keys and values in all layers."""
    pool = cache.token_to_kv_pool_allocator.get_kvcache()
    found: dict[str, tuple[str, float]] = {}
    for node in cache.tree.nodes():
        if node.slots is None or node.root.is_patch:  # the key of a patch holds no tokens
            continue
        slots = torch.from_numpy(node.slots)
        rows = [pool.get_key_buffer(layer)[slots] for layer in range(pool.layer_num)]
        rows += [pool.get_value_buffer(layer)[slots] for layer in range(pool.layer_num)]
        kv = torch.stack(rows, 1).flatten(1).double().numpy()
        # Each channel has a weight of its own: a sum alone would not see two that changed places.
        sums = (kv * np.sin(np.arange(kv.shape[1]) + 1)).sum(1)
        way = blake2b(_path(node), digest_size=16)
        for token, row, total in zip(to_tokens(node.key), kv, sums, strict=True):
            way.update(to_key(np.array([token], np.int64)))
            found[way.hexdigest()] = (blake2b(row.tobytes(), digest_size=8).hexdigest(), total)
    return found


control._ANSWERS[QUESTION] = _answer
