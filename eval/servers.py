# SPDX-License-Identifier: Apache-2.0
"""A real server of a model, for as long as a `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from depcache.errors import ServerError
from depcache.serving.launch import find_gpu, make_launch
from depcache.serving.process import ServerProcess, find_free_port

READY_S = 1800.0
FLUSH_S = 60.0
"""How long a server may take until nothing runs that uses its cache."""


@contextmanager
def serve(
    model: str,
    log_file: Path,
    *,
    pool_tokens: int,
    settings: Mapping[str, str],
    sglang_args: Sequence[str] = (),
    stock: bool = False,
) -> Iterator[str]:
    """Start it on a free port and wait until it answers; its URL.

    pool_tokens  slots of the device
    settings     of DepCache, by the names of `depcache.config`
    stock        with SGLang's own prefix cache instead

    Raises ServerError, with the end of the log, when it ends or is not ready in time.
    """
    port = find_free_port()
    args = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    args += ["--max-total-tokens", str(pool_tokens), "--skip-server-warmup", *sglang_args]
    launch = make_launch(
        args, model=model, has_gpu=find_gpu(), settings=dict(settings), stock=stock
    )
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(launch, url, log_file) as process:
        process.wait_until_ready(READY_S)
        yield url


def flush(url: str) -> None:
    """Empty all caches. SGLang refuses while it still counts a request as running.

    Raises ServerError where it does so for FLUSH_S.
    """
    reply = httpx.post(f"{url}/flush_cache", params={"timeout": FLUSH_S}, timeout=2 * FLUSH_S)
    if not reply.is_success:
        raise ServerError(f"the server at {url} did not empty its cache: {reply.text.strip()}")
