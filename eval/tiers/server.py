# SPDX-License-Identifier: Apache-2.0
"""A real server with a host and a disk tier, for as long as a `with` block, over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from depcache.client.client import Client
from depcache.errors import ServerError
from depcache.prompt.recompute import Recompute
from eval.servers import serve
from eval.tiers.phases import Answered
from eval.tiers.prompts import TierPrompt

WAIT_S = 120.0
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What every server of a report has in common.

    pool_tokens   slots of the device, and of the host
    write_policy  `write_back` writes nothing beside a measured request
    """

    model: str
    pool_tokens: int
    host_gb: float
    disk_gb: float
    write_policy: str
    sglang_args: tuple[str, ...] = ()


class LiveServer:
    """The verbs of `TierServer` over HTTP."""

    def __init__(self, client: Client, http: httpx.Client, start_s: float) -> None:
        self.start_s = start_s
        self._client = client
        self._http = http
        self.bytes_per_token = int(self.stats()["tiers"]["device"]["bytes_per_token"])

    def ask(
        self, prompt: TierPrompt, version: int, *, recompute: Recompute | None = None
    ) -> Answered:
        rendered = prompt.render(version, recompute)
        reply = self._client.chat(
            rendered.messages, stream=True, max_tokens=1, **rendered.extra_body
        ).finish()
        report = reply.depcache
        if report is None or reply.ttft_s is None:
            raise ServerError("a reply has no metadata.depcache: the server runs without DepCache")
        return Answered(
            ttft_ms=reply.ttft_s * 1e3,
            prompt_tokens=reply.usage.prompt_tokens,
            context_tokens=report.context_tokens,
            shared=report.shared,
            loaded=report.loaded,
            missed=report.missed,
            cached_tokens=reply.usage.cached_tokens,
        )

    def prefetch(self, prompt: TierPrompt, version: int) -> dict[str, Any]:
        rendered = prompt.render(version)
        body = {"messages": rendered.messages, **rendered.extra_body}
        before = self.stats()["tiers"]["host"]["tokens"]
        started = time.perf_counter()
        num_tokens = int(self._post("/depcache/prefetch", body)["fetched"])
        while num_tokens and self.stats()["tiers"]["host"]["tokens"] < before + num_tokens:
            self._wait(started)
        arrived = time.perf_counter()
        self._post("/depcache/prefetch", body)
        # The call itself takes its time, for the text is cut into trees; that is no transfer.
        call_s = time.perf_counter() - arrived
        return {
            "tokens": num_tokens,
            "bytes": num_tokens * self.bytes_per_token,
            "ms": max(0.0, arrived - started - call_s) * 1e3,
        }

    def persist(self) -> dict[str, Any]:
        before = self.stats()["tiers"]["disk"]["bytes"]
        started = time.perf_counter()
        num_tokens = self._post("/depcache/persist")["tokens"]
        while (disk := self.stats()["tiers"]["disk"])["waiting_tokens"]:
            self._wait(started)
        seconds = time.perf_counter() - started
        return {"tokens": num_tokens, "bytes": disk["bytes"] - before, "seconds": seconds}

    def forget(self) -> None:
        self._post("/depcache/flush?keep_disk=true")

    def stats(self) -> dict[str, Any]:
        return self._client.stats()

    def _post(self, route: str, body: Any = None) -> dict[str, Any]:
        reply = self._http.post(self._client.base_url + route, json=body)
        if not reply.is_success:
            raise ServerError(f"{route} failed (HTTP {reply.status_code}): {reply.text[:200]}")
        return reply.json()

    def _wait(self, started: float) -> None:
        if time.perf_counter() - started > WAIT_S:
            raise ServerError(f"the disk tier did not come to an end in {WAIT_S:.0f} s")
        time.sleep(_POLL_S)


@contextmanager
def start_live(
    settings: ServerSettings, load_policy: str, disk_folder: Path, log_file: Path
) -> Iterator[LiveServer]:
    """Start a server on a folder, stop it at the end of the block."""
    started = time.perf_counter()
    with (
        serve(
            settings.model,
            log_file,
            pool_tokens=settings.pool_tokens,
            settings={
                "host_gb": str(settings.host_gb),
                "disk_gb": str(settings.disk_gb),
                "disk_folder": str(disk_folder),
                "load_policy": load_policy,
                "write_policy": settings.write_policy,
            },
            sglang_args=settings.sglang_args,
        ) as url,
        httpx.Client(timeout=httpx.Timeout(600.0, connect=10.0)) as http,
        Client(url, http_client=http) as client,
    ):
        yield LiveServer(client, http, time.perf_counter() - started)


def drop_page_cache(folder: Path) -> None:
    """Have the system forget what it holds in memory of the files in `folder`."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
