# SPDX-License-Identifier: Apache-2.0
"""Hook on the check of server arguments: refuse early, then set up the tokenizer's process.

Why: a plugin is loaded before the arguments are known, and the cache is built late, in
another process. This is the one place in the main process that sees final arguments before
anything starts, for the HTTP server and for `sglang.Engine` alike.
Unnecessary when SGLang tells plugins the server arguments.
"""

from __future__ import annotations

import sys
from typing import Any

from depcache.config import load_config
from sglang_patches.version import BACKEND_NAME


def prepare_front(result: Any, server_args: Any) -> None:
    """Check the arguments, adopt HiCache's, hook this process, verify, and add the routes."""
    if server_args.radix_cache_backend != BACKEND_NAME:
        return
    from sglang_patches.hicache_flags import adopt_hicache_flags
    from sglang_patches.hooks import install_front_hooks
    from sglang_patches.http.rejections import export_rejections
    from sglang_patches.refusals import refuse_unsupported
    from sglang_patches.requests.catalog import CATALOG
    from sglang_patches.requests.evidence import set_evidence
    from sglang_patches.requests.fused import set_fused
    from sglang_patches.requests.recognition import set_recognisers
    from sglang_patches.requests.roots import set_roots
    from sglang_patches.requests.shadow import set_shadow
    from sglang_patches.verify import require_front_in_place, require_in_place

    adopt_hicache_flags(server_args)
    config = load_config()  # not before: HiCache's flags have just become settings
    refuse_unsupported(server_args, config)
    require_in_place()
    install_front_hooks()
    require_front_in_place()
    export_rejections(server_args)
    set_recognisers(config)
    CATALOG.set(config)
    set_fused(config)
    set_roots(config)
    set_evidence(server_args, config)
    set_shadow(config)
    http_server = sys.modules.get("sglang.srt.entrypoints.http_server")
    if http_server is not None:
        from sglang_patches.http.routes import add_routes

        add_routes(http_server, config)


HOOKS = {"sglang.srt.server_args.ServerArgs.check_server_args": ("AFTER", prepare_front)}
