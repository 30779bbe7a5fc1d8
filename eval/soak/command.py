# SPDX-License-Identifier: Apache-2.0
"""Does it hold for hours? `python -m eval soak --minutes 15 --json OUT`.

Starts real servers of depcache-tiny with all tiers on, a small pool and SGLang's strict checks, and
sends them everything at once: all layouts and forms on all routes, plain prompts, tenants, streams,
clients that go away, aborts, retries, fields of the wrong type, flushes. Answers are judged by an
oracle while it goes on. Servers are killed and started again, share a disk, run out of it, get
other weights; and each heavy request is timed by what it costs others. See `eval.soak.phases`.

The exit code is 1 where the bar is missed: no wrong answer, no 5xx, no token leaked, memory that
grows by less than 20 MB an hour after the warm-up, nobody held up by more than 500 ms by one
request. What a fault needs to be seen again is in `faults.jsonl` in --out, beside all logs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from depcache.errors import ConfigError
from depcache.serving.launch import require_sglang
from eval.output import about, require, write_report
from eval.soak.judge import Judge
from eval.soak.ledger import Ledger
from eval.soak.phases import FOLDERS, PHASES, ROUTED, Soak
from eval.soak.prompts import World
from eval.soak.report import make_report, to_text

MINUTES = 15.0
FAULTS = "faults.jsonl"
SHARES = {
    "fuzz": 0.005,
    "kills": 0.1,
    "shared": 0.05,
    "weights": 0.05,
    "disk": 0.1,
    "stalls": 0.2,
    ROUTED: 0.07,
}
"""Shares of the minutes; the storm has the rest, less what starting servers takes."""
LEAST_S = {
    "fuzz": 5.0,
    "kills": 16.0,
    "shared": 8.0,
    "weights": 8.0,
    "disk": 12.0,
    "stalls": 200.0,
    ROUTED: 60.0,
}
MOST_S = 240.0
STORM_SHARE = 0.4
"""The storm's share at least, however long servers take to start."""
NUM_STARTS = {
    "storm": 1,
    "fuzz": 0,
    "kills": 2,
    "shared": 1,
    "weights": 0,
    "disk": 2,
    "stalls": 1,
    ROUTED: 2,
}
START_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add = parser.add_argument
    add("--minutes", type=float, default=MINUTES, help=f"about, in all (default {MINUTES:g})")
    add("--json", type=Path, help="file for the report; - is stdout")
    add("--out", type=Path, help="folder for logs and faults (default: a temporary one)")
    add("--only", nargs="+", choices=PHASES, metavar="PHASE", help=f"of {', '.join(PHASES)}")
    add("--smg", type=Path, help=f"the command of SMG, for the phase {ROUTED}")
    add("--seed", type=int, default=0, help="of everything that is drawn (default 0)")


def run(args: argparse.Namespace) -> int:
    """Run it, print and write; 1 if the bar is missed."""
    require_sglang()
    require("psutil")
    if ROUTED in (args.only or ()) and args.smg is None:
        raise ConfigError(f"the phase {ROUTED} needs SMG: name its command with --smg")
    if not args.minutes > 0:
        raise ConfigError(f"--minutes is {args.minutes:g}: choose more than 0")
    folder = args.out or Path(tempfile.mkdtemp(prefix="depcache-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAULTS).unlink(missing_ok=True)
    err = Console(stderr=True, highlight=False)
    report = asyncio.run(_soak(args, folder, lambda text: err.print(text, markup=False)))
    err.print(to_text(report), markup=False, soft_wrap=True)
    if report["missed"]:
        err.print(f"logs and faults: {folder}", markup=False, soft_wrap=True)
    elif args.out is None:
        shutil.rmtree(folder)
    write_report(report, args.json)
    return 1 if report["missed"] else 0


def make_plan(
    minutes: float, only: list[str] | None = None, *, has_smg: bool = False
) -> dict[str, float]:
    """Seconds of traffic of each phase, so that all takes about so long.

    The other phases have their shares, from LEAST_S to MOST_S; the storm has what is left. Without
    the storm they have all of it, in the same proportions.
    """
    phases = only or [phase for phase in PHASES if phase != ROUTED or has_smg]
    total = minutes * 60
    starts = sum(NUM_STARTS[phase] for phase in phases) * START_S
    others = [phase for phase in phases if phase != "storm"]
    if others == list(phases):
        whole = sum(SHARES[phase] for phase in others)
        starts = max(starts, START_S)  # that of the main server, for those that start none
        parts = {phase: (total - starts) * SHARES[phase] / whole for phase in others}
        return {phase: max(LEAST_S[phase], part) for phase, part in parts.items()}
    seconds = {phase: max(LEAST_S[phase], min(MOST_S, total * SHARES[phase])) for phase in others}
    left = total - sum(seconds.values()) - starts
    return seconds | {"storm": max(left, STORM_SHARE * total)}


async def _soak(
    args: argparse.Namespace, folder: Path, on_step: Callable[[str], None]
) -> dict[str, Any]:
    from transformers import AutoTokenizer

    started = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(next(iter(FOLDERS.values())))
    ledger = Ledger(folder / FAULTS)
    with Judge(FOLDERS) as judge:
        world = World(tokenizer, args.seed)
        soak = Soak(ledger, judge, world, tokenizer, args.seed, folder, on_step, args.smg)
        await soak.run(make_plan(args.minutes, args.only, has_smg=args.smg is not None))
    seconds = time.monotonic() - started
    report = make_report(
        ledger,
        judge,
        minutes=seconds / 60,
        seed=args.seed,
        leaked=soak.leaked,
        growth=soak.growth,
        ttft=soak.ttft,
        kills=soak.kills,
        restart_hits=soak.restart_hits,
        stalls=soak.stalls,
        usual_ms=soak.usual_ms,
        notes=soak.notes,
    )
    return report | {"manifest": about(args, seconds)}
