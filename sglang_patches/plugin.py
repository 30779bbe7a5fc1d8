# SPDX-License-Identifier: Apache-2.0
"""Entry point `depcache` in `sglang.srt.plugins`: SGLang calls `register` in every process.

Official seams first (radix-cache backend, attention backends), hooks second (`hooks/`).
SGLang logs and swallows a plugin's errors, so nothing here may fail unseen: the backend's
name is registered before anything else, and building the cache stops the server when a seam
or hook is missing. A server that does not ask for the backend stays stock.
"""

from __future__ import annotations

import logging
from typing import Any

from depcache import gpu_checks
from depcache.cache import EVICTION_POLICIES
from depcache.config import load_config
from sglang_patches.version import BACKEND_NAME

logger = logging.getLogger("depcache")

_failure: Exception | None = None


def register() -> None:
    """Put seams and hooks in place. Safe to call twice."""
    global _failure
    from sglang.srt.mem_cache.registry import (
        register_radix_cache_backend,
        registered_radix_cache_backends,
    )

    if BACKEND_NAME not in registered_radix_cache_backends():
        register_radix_cache_backend(BACKEND_NAME, make_tree_cache)
    _offer_eviction_policies()
    try:
        from sglang_patches.attention import register_backends
        from sglang_patches.hooks import register_hooks

        register_backends()
        register_hooks()
    except Exception as error:
        _failure = error
        raise


def _offer_eviction_policies() -> None:
    """Let `--radix-eviction-policy` take our names."""
    from sglang.srt import server_args

    known = server_args.RADIX_EVICTION_POLICY_CHOICES
    server_args.add_radix_eviction_policy_choices(
        [name for name in EVICTION_POLICIES if name not in known]
    )


def registration_error() -> Exception | None:
    """What made `register` fail in this process, None if it did not."""
    return _failure


def make_tree_cache(context: Any) -> Any:
    """The radix cache of one scheduler process; raises ConfigError when it cannot work.

    context  SGLang's TreeCacheBuildContext
    """
    from sglang_patches.observe.metrics import make_metrics
    from sglang_patches.refusals import refuse_model, refuse_unsupported
    from sglang_patches.tiers.open import open_disk, open_host
    from sglang_patches.tree_cache import DepCacheTree
    from sglang_patches.verify import require_in_place

    require_in_place()
    config = load_config()
    refuse_unsupported(context.server_args, config)
    refuse_model(context)
    pool = context.params.token_to_kv_pool_allocator.get_kvcache()
    warn_unchecked(pool.device, context.tp_rank)
    cache = DepCacheTree(
        context.params,
        config,
        context.server_args.radix_eviction_policy,
        open_host(pool, config),
        open_disk(context, pool, config),
        # Ranks must agree, and they do not measure the same.
        measures=config.load_policy == "faster" and context.tp_size == 1,
    )
    cache.metrics = make_metrics(context, cache)
    if config.root_events and context.tp_rank == 0:
        cache.publish_roots(config.root_events)
    return cache


def warn_unchecked(device: Any, tp_rank: int) -> None:
    """Say once per server what has not passed on a GPU yet, where `device` is one."""
    why = gpu_checks.why_unchecked()
    if why is not None and tp_rank == 0 and str(device).startswith("cuda"):
        logger.warning("%s", why)
