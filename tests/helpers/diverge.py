# SPDX-License-Identifier: Apache-2.0
"""A planted fault: the second rank of an engine loses its cache before a marked prompt is matched.

Named in DEPCACHE_TESTS_PREPARE, it is imported in every process of the engine.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from sglang_patches.tree_cache import DepCacheTree

MARK = 999
"""A prompt that ends in this token is marked."""

_match = DepCacheTree._match  # pyright: ignore[reportPrivateUsage]


def _lose_and_match(self: DepCacheTree, req: Any, key: Any) -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    if dist.get_rank() == 1 and req.origin_input_ids[-1] == MARK:
        self.evict(EvictParams(num_tokens=self.tree.num_evictable))
    return _match(self, req, key)


DepCacheTree._match = _lose_and_match  # pyright: ignore[reportPrivateUsage]
