# SPDX-License-Identifier: Apache-2.0
"""The tiers that the settings ask for."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from depcache.config import Config
from sglang_patches.ranks import RankGroup
from sglang_patches.tiers.disk.file_hashes import FileHashes
from sglang_patches.tiers.disk.fingerprint import Fingerprint, make_fingerprint
from sglang_patches.tiers.disk.ranked import RankedDiskTier
from sglang_patches.tiers.disk.tier import DiskTier
from sglang_patches.tiers.host.pool import GB, bytes_per_token, row_shape
from sglang_patches.tiers.host.tier import HostTier

logger = logging.getLogger("depcache")

SWITCH_S = 0.0005
HASHES = "hashes.json"


def open_host(device_pool: Any, config: Config) -> HostTier | None:
    """The host tier; None when it is off. Raises ConfigError when the memory is not there."""
    num_bytes = config.host_gb * GB
    if not num_bytes:
        num_bytes = config.host_ratio * device_pool.size * bytes_per_token(device_pool)
    return HostTier(device_pool, int(num_bytes)) if num_bytes else None


def open_disk(context: Any, device_pool: Any, config: Config) -> DiskTier | None:
    """The disk tier; None when it is off. Waits for the other ranks, which have one too or none.

    Raises ConfigError for settings that cannot work. Weights that cannot be read, a folder that
    cannot be used, or a storage that does not open, switch the tier off, with a warning.

    context  SGLang's TreeCacheBuildContext
    """
    if not config.disk_gb:
        return None
    # A thread that comes back from a system call waits so long for the interpreter's lock while
    # the scheduler computes, three times for every value: with 5 ms, the default, reading 300
    # values would take seconds.
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
    group = RankGroup(context.params.tp_cache_group)
    # The first rank reads the weights, and the others find what it remembers of them.
    fingerprint = _read_fingerprint(context, device_pool, config) if group.is_first else None
    if not all(group.of_first([fingerprint is not None])):
        return None
    if not group.is_first:
        fingerprint = _read_fingerprint(context, device_pool, config)
    if not all(group.lowest([fingerprint is not None])) or fingerprint is None:
        return None
    settings: dict[str, Any] = {
        "backend": config.disk_backend,
        "backend_config": config.disk_config,
        "tp_rank": context.tp_rank,
        "tp_size": context.tp_size,
    }
    num_bytes = int(config.disk_gb * GB) // group.size
    if group.size == 1:
        return DiskTier(fingerprint, config.disk_folder, num_bytes, **settings)
    return RankedDiskTier(group, fingerprint, config.disk_folder, num_bytes, **settings)


def _read_fingerprint(context: Any, device_pool: Any, config: Config) -> Fingerprint | None:
    """None, with a warning, where the model's files cannot be read."""
    try:
        return make_fingerprint(
            context.server_args,
            context.model_config,
            row_shape(device_pool),
            tp_rank=context.tp_rank,
            pp_rank=context.params.pp_rank,
            reencodes=config.reencode_positions,
            hashes=FileHashes(Path(config.disk_folder).expanduser() / HASHES),
        )
    except OSError as error:
        logger.warning(
            "disk tier: whose KV is on disk is not known, because the model's files cannot be "
            "read (%s): the server runs without it",
            error,
        )
        return None
