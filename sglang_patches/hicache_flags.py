# SPDX-License-Identifier: Apache-2.0
"""SGLang's own flags for host memory and storage (HiCache) turn on the tiers of DepCache.

`--enable-hierarchical-cache` with `--hicache-size` or `--hicache-ratio` is a host tier,
`--hicache-storage-backend` a disk tier. SGLang must not see them any more: it would drive its
own controller. Settings of DepCache that are given win.
"""

from __future__ import annotations

import json
import os
from typing import Any

from depcache.errors import ConfigError
from sglang_patches.compat import change_arguments
from sglang_patches.tiers.disk.storage import check_backend
from sglang_patches.version import BACKEND_NAME


def adopt_hicache_flags(server_args: Any) -> None:
    """Turn the flags into settings, for the processes that are started next. Safe to call twice.

    Raises ConfigError when they ask for what does not exist here.
    """
    if not server_args.enable_hierarchical_cache:
        if server_args.hicache_storage_backend is not None:
            raise ConfigError(
                f"--hicache-storage-backend {server_args.hicache_storage_backend!r} keeps KV that "
                "left host memory: give --enable-hierarchical-cache and --hicache-size as well"
            )
        return
    if server_args.hicache_size:
        _set("HOST_GB", server_args.hicache_size)
    elif "DEPCACHE_HOST_GB" not in os.environ:
        _set("HOST_RATIO", server_args.hicache_ratio)
    _set("WRITE_POLICY", server_args.hicache_write_policy)
    if server_args.hicache_storage_backend is not None:
        config = json.loads(server_args.hicache_storage_backend_extra_config or "{}")
        check_backend(server_args.hicache_storage_backend, config)
        if not float(os.environ.get("DEPCACHE_DISK_GB", 0)):
            raise ConfigError(
                f"--hicache-storage-backend {server_args.hicache_storage_backend!r} has no limit "
                "of its own: set DEPCACHE_DISK_GB to the GB that it may take"
            )
        _set("DISK_BACKEND", server_args.hicache_storage_backend)
        _set("DISK_CONFIG", json.dumps(config))
        folder = os.environ.get("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR")
        if folder:
            _set("DISK_FOLDER", folder)
    change_arguments(
        server_args, BACKEND_NAME, enable_hierarchical_cache=False, hicache_storage_backend=None
    )


def _set(name: str, value: Any) -> None:
    os.environ.setdefault(f"DEPCACHE_{name}", str(value))
