# SPDX-License-Identifier: Apache-2.0
"""The phases of a soak, one after the other, each with what only it can show.

storm    the long one, on one life of one server: answers, leaks, growth
fuzz     requests with fields of the wrong type and nothing else, fused ones among them
kills    SIGKILL and SIGTERM in the middle of traffic, each with a restart on the same folder
shared   a second server on that folder for a while
weights  other weights and back during traffic; the disk is off from then on, by design
disk     a folder on a file system that is soon full, and a start when it is read-only
stalls   what one heavy request costs everybody else, on an idle server
routed   through SMG to two servers, of which one is killed on the way; only with --smg
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from depcache.errors import ServerError
from depcache.serving.tiny import TINY_NAME
from eval.soak.calls import CUT_OFF
from eval.soak.judge import Judge
from eval.soak.ledger import Ledger
from eval.soak.prompts import World
from eval.soak.questions import Request, draw_request
from eval.soak.routed import ACTIONS, Routed, draw_routed
from eval.soak.server import STRESS, Endpoint, Server, Setup
from eval.soak.small_disk import MountError, small_disk
from eval.soak.stalls import Stall, measure_stalls
from eval.soak.storm import Storm
from eval.soak.watch import Watch
from eval.soak.weights import Weights
from models.tiny.stages import SELF_ATTENTION, TINY, kept_folder

POOL_TOKENS = 1500
"""Less than what the clients ask about at once: requests wait, are retracted, and evict."""
POOL_TOKENS_STALLS = 40_000
NUM_KEPT = 10
TERM_PATIENCE_S = 60.0
NO_END_S = 1e6
STORED_S = 60.0

FOLDERS = {name: kept_folder(name) for name in (TINY, SELF_ATTENTION)}
"""Two sets of weights of one model, by name."""

ON_MAIN = ("storm", "fuzz", "kills", "shared", "weights")
ROUTED = "routed"
PHASES = (*ON_MAIN, "disk", "stalls", ROUTED)


@dataclass
class Soak:
    """All phases, and what they leave: counts in the ledger, the rest here."""

    ledger: Ledger
    judge: Judge
    world: World
    tokenizer: Any
    seed: int
    folder: Path
    on_step: Callable[[str], None]
    smg: Path | None = None
    leaked: int = 0
    kills: list[dict[str, Any]] = field(default_factory=list)
    restart_hits: int = 0
    growth: dict[str, Any] = field(default_factory=dict)
    ttft: dict[str, float | None] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    usual_ms: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    _servers: list[Server] = field(default_factory=list)

    async def run(self, seconds: Mapping[str, float]) -> None:
        """All phases that have seconds of traffic. What ends one of them does not end the others.

        Interrupted, it ends its servers and returns; the report then says so.
        """
        try:
            await self._run_phases(seconds)
        except asyncio.CancelledError:
            self.ledger.fault("phase ended", "interrupted")
        finally:
            for server in self._servers:
                server.stop()
            shutil.rmtree(self._disks, ignore_errors=True)

    async def _run_phases(self, plan: Mapping[str, float]) -> None:
        main = self.make_server("main")
        storm = self._make_storm(main, "main")
        for phase in PHASES:
            if phase not in plan:
                continue
            self.ledger.phase = phase
            self.on_step(phase)
            seconds = plan[phase]
            before = (sum(self.ledger.requests.values()), self.judge.num_judged)
            started = time.monotonic()
            try:
                if phase in ON_MAIN:
                    if not main.is_running:
                        await asyncio.to_thread(main.start)
                    await getattr(self, f"_run_{phase}")(storm, seconds)
                else:
                    await asyncio.to_thread(main.stop)
                    await getattr(self, f"_run_{phase}")(seconds)
            except ServerError as error:
                self.ledger.fault("phase ended", str(error))
            self.notes[phase] = {
                **self.notes.get(phase, {}),
                "seconds": round(time.monotonic() - started, 1),
                "requests": sum(self.ledger.requests.values()) - before[0],
                "judged": self.judge.num_judged - before[1],
            }
        self.leaked = max(self.leaked, storm.leaked)

    @property
    def _disks(self) -> Path:
        return self.folder / "disks"

    def make_server(self, name: str, **settings: str) -> Server:
        """One for storms: a small pool, all tiers, SGLang's strict checks."""
        tiers = {
            "host_gb": "0.03",  # some 3,700 tokens
            "disk_gb": "0.3",
            "disk_folder": str(self._disks / name),
            "write_policy": "write_through",
            "load_policy": "always",  # computing a tiny model is faster
            "cpu_threads": "1",
        }
        args = ("--chunked-prefill-size", "256", "--max-running-requests", "16")
        # SGLang admits as if answers were short, so that running requests must be retracted.
        args += ("--schedule-conservativeness", "0.2", "--enable-metrics")
        args += ("--radix-eviction-policy", "lacr_adaptive")
        setup = Setup(TINY_NAME, POOL_TOKENS, tiers | settings, args, STRESS)
        return self._add(Server(setup, self.folder, name))

    def _add(self, server: Server) -> Server:
        """Remember a server, so that it is stopped in the end, whatever happens."""
        self._servers.append(server)
        return server

    def _make_storm[Asked: Endpoint](
        self, server: Asked, name: str, num_clients: int = 20
    ) -> Storm[Asked]:
        return Storm(
            server,
            self.ledger,
            self.judge,
            self.world,
            f"{self.seed}/{name}",
            POOL_TOKENS,
            Weights.of(TINY),
            num_clients,
        )

    # -- on the main server ------------------------------------------------------------------------

    async def _run_storm(self, storm: Storm[Server], seconds: float) -> None:
        await storm.warm_up()
        watch = Watch(storm.server)
        watching = asyncio.create_task(watch.run())
        start = time.monotonic()
        try:
            await storm.run(seconds)
        finally:
            watching.cancel()
            stop = time.monotonic()
            fifth = (stop - start) / 5
            self.growth = watch.summary()
            self.ttft = {
                "p99_ttft_ms_start": self.ledger.p99_ttft_ms(start, start + fifth),
                "p99_ttft_ms_end": self.ledger.p99_ttft_ms(stop - fifth, stop),
            }

    async def _run_fuzz(self, storm: Storm[Server], seconds: float) -> None:
        actions, storm.actions = storm.actions, {"fuzz": 1.0}
        try:
            await storm.run(seconds)
        finally:
            storm.actions = actions

    async def _run_kills(self, storm: Storm[Server], seconds: float) -> None:
        for how in ("SIGKILL", "SIGTERM"):
            kept = await self._keep(storm, how)
            traffic = asyncio.create_task(storm.run(NO_END_S))
            await asyncio.sleep(seconds / 4)
            found: dict[str, Any] = {"how": how, "under_way": len(self.ledger.suspects())}
            if how == "SIGKILL":
                await asyncio.to_thread(storm.server.kill)
            else:
                # It ends when those that run have been answered, so no others may come.
                async with storm.closed():
                    found["under_way"] = len(self.ledger.suspects())
                    seconds_taken = await asyncio.to_thread(storm.server.terminate, TERM_PATIENCE_S)
                    found["seconds"] = round(seconds_taken, 1)
            storm.end()
            await traffic
            await asyncio.to_thread(storm.server.start)
            hits, missed = await self._ask_kept(storm, kept)
            await storm.run(seconds / 4)
            self.restart_hits += hits
            self.kills.append(found | {"loaded_after": hits, "missed_after": missed})

    async def _keep(self, storm: Storm[Server], name: str) -> list[Request]:
        """Requests whose trees are on disk when this returns."""
        rng = random.Random(f"{self.seed}/kept/{name}")
        kept: list[Request] = []
        async with storm.quiet():
            while len(kept) < NUM_KEPT:
                prompt = self.world.draw(rng)
                if prompt.kind == "tree":
                    kept.append(draw_request(rng, prompt, 4))
            for request in kept:
                await storm.ask(request, is_patient=True)
            await storm.calls.send("/depcache/persist", "POST", "/depcache/persist")
            deadline = time.monotonic() + STORED_S
            while time.monotonic() < deadline:
                reply = await storm.calls.send("/depcache/stats", "GET", "/depcache/stats")
                if reply is None or '"waiting_tokens":0' in reply.text.replace(" ", ""):
                    break
                await asyncio.sleep(0.2)
        return kept

    async def _ask_kept(self, storm: Storm[Server], kept: list[Request]) -> tuple[int, int]:
        """Tokens that were loaded and missed, asked right after a restart and judged."""
        loaded = missed = 0
        for request in kept:
            for report in await storm.ask(request, is_patient=True):
                if report is not None:
                    loaded += report["loaded"]
                    missed += report["missed"]
        return loaded, missed

    async def _run_shared(self, storm: Storm[Server], seconds: float) -> None:
        folder = storm.server.setup.settings["disk_folder"]
        second = self.make_server("second", disk_folder=folder)
        await asyncio.to_thread(second.start)
        other = self._make_storm(second, "second", 8)
        try:
            await asyncio.gather(storm.run(seconds), other.run(seconds))
        finally:
            await other.calls.close()
            await asyncio.to_thread(second.stop)
            self.leaked = max(self.leaked, other.leaked)

    async def _run_weights(self, storm: Storm[Server], seconds: float) -> None:
        traffic = asyncio.create_task(storm.run(seconds))
        changes = []
        for name in (SELF_ATTENTION, TINY):
            await asyncio.sleep(seconds / 4)
            body = {"model_path": str(FOLDERS[name])}
            with storm.weights.changing_to(name):
                started = time.monotonic()
                reply = await storm.calls.send(
                    "/update_weights_from_disk", "POST", "/update_weights_from_disk", body
                )
                changes.append(round(time.monotonic() - started, 2))
            if reply is None or not reply.is_ok:
                what = "no answer" if reply is None else reply.text[:300]
                self.ledger.fault("refused", f"new weights: {what}", body)
        await traffic
        reply = await storm.calls.send("/depcache/stats", "GET", "/depcache/stats")
        is_off = reply is not None and '"is_off":true' in reply.text.replace(" ", "")
        self.notes["weights"] = {"changes_s": changes, "disk_is_off": is_off}
        await asyncio.to_thread(storm.server.stop)

    # -- on servers of their own -------------------------------------------------------------------

    async def _run_disk(self, seconds: float) -> None:
        folder = self._disks / "small"
        try:
            with small_disk(folder) as set_read_only:
                server = self.make_server("full", disk_folder=str(folder))
                storm = self._make_storm(server, "full")
                await asyncio.to_thread(server.start)
                try:
                    await storm.run(seconds / 2)
                    found = {"when_full": await self._disk_stats(storm)}
                    await asyncio.to_thread(server.stop)
                    set_read_only(True)
                    self.ledger.phase = "disk, read-only"
                    await asyncio.to_thread(server.start)
                    await storm.run(seconds / 2)
                    found["when_read_only"] = await self._disk_stats(storm)
                    self.notes["disk"] = found
                finally:
                    await storm.calls.close()
                    await asyncio.to_thread(server.stop)
                    self.leaked = max(self.leaked, storm.leaked)
        except MountError as error:
            self.notes["disk"] = {"left_out": str(error)}

    async def _disk_stats(self, storm: Storm) -> Any:
        reply = await storm.calls.send("/depcache/stats", "GET", "/depcache/stats")
        if reply is None or not reply.is_ok:
            return None
        disk = json.loads(reply.text)["tiers"]["disk"]
        names = ("bytes", "inserted", "loaded", "failures", "dropped_nodes", "is_off")
        return {name: disk[name] for name in names}

    async def _run_stalls(self, seconds: float) -> None:
        tiers = {"host_gb": "0.5", "disk_gb": "0.5", "disk_folder": str(self._disks / "idle")}
        setup = Setup(TINY_NAME, POOL_TOKENS_STALLS, tiers)
        server = self._add(Server(setup, self.folder, "stalls"))

        def run() -> None:
            with server:
                self.stalls, self.usual_ms = measure_stalls(
                    server,
                    self.ledger,
                    self.tokenizer,
                    str(self.seed),
                    seconds,
                    lambda name: self.on_step(f"stalls: {name}"),
                )

        await asyncio.to_thread(run)

    async def _run_routed(self, seconds: float) -> None:
        assert self.smg is not None
        servers = [self.make_server(f"routed-{number}") for number in range(2)]
        routed = Routed(servers, self.smg, self.folder)
        storm = self._make_storm(routed, ROUTED, 12)
        storm.actions, storm.tidies = ACTIONS, False
        try:
            await asyncio.to_thread(routed.start)
            storm.draw = partial(draw_routed, model=routed.model)
            await storm.run(seconds / 3)
            traffic = asyncio.create_task(storm.run(seconds * 2 / 3))
            await asyncio.sleep(seconds / 6)
            cut_off = self.ledger.seen[CUT_OFF]
            under_way = len(self.ledger.suspects())
            noticed_s = await asyncio.to_thread(routed.kill_one)
            await traffic
            self.notes[ROUTED] = {
                "under_way": under_way,
                "cut_off": self.ledger.seen[CUT_OFF] - cut_off,
                "noticed_s": round(noticed_s, 1),
            }
        finally:
            await storm.calls.close()
            await asyncio.to_thread(routed.stop)
            self.leaked = max(self.leaked, storm.leaked)
