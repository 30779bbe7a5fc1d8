# SPDX-License-Identifier: Apache-2.0
"""`depcache demo`, as a user runs it, several times: its figures, and the speed-up of each run.

DepCache and stock SGLang with the same flags, depcache-tiny, 40 questions in two orders.

    --quick   one run
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from depcache.serving.launch import require_sglang
from eval.output import about, add_output, write_report

NUM_RUNS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="one run")
    parser.add_argument("--runs", type=int, help=f"default {NUM_RUNS}")
    parser.add_argument("--questions", type=int, default=40, help="the first so many (default 40)")


def run(args: argparse.Namespace) -> int:
    """Run the demo, show what it shows, and write its figures."""
    require_sglang()
    started = time.perf_counter()
    runs = [run_once(args.questions) for _ in range(args.runs or (1 if args.quick else NUM_RUNS))]
    print("speed-ups:", *(found["speed_up"] for found in runs), file=sys.stderr)
    write_report({**about(args, time.perf_counter() - started), "runs": runs}, args.json)
    return 0


def run_once(num_questions: int) -> dict[str, Any]:
    """The figures of one demo, and how many times sooner DepCache's first token came."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.json"
        command = [sys.executable, "-m", "depcache.cli.main", "demo"]
        command += ["--questions", str(num_questions), "--json", str(file)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    ours, theirs = (found["systems"][name]["ttft_ms_median"] for name in ("depcache", "sglang"))
    return {**found, "speed_up": round(theirs / ours, 2)}
