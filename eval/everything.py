# SPDX-License-Identifier: Apache-2.0
"""All that is measured, one after the other: `python -m eval all --quick --data DIR --out DIR`.

serve, quality, policy and attention, each with its report as JSON in --out. What one of them
lacks ends that one, not the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("serve", "quality", "policy", "attention")
_WITH_DATA = ("serve", "quality", "policy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    parser.add_argument("--quick", action="store_true", help="each of them with --quick")
    parser.add_argument("--data", type=Path, help="folder that holds the public sets")
    parser.add_argument("--vllm", type=Path, help="python of an environment with vLLM")
    parser.add_argument("--out", type=Path, required=True, help="folder for the reports")


def run(args: argparse.Namespace) -> int:
    """Run all; the exit code is the highest."""
    args.out.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in PARTS:
        print(f"== {part}", file=sys.stderr, flush=True)
        # Each in a process of its own: what one holds in memory must not slow the next.
        codes.append(subprocess.run(make_command(part, args)).returncode)
    for part, code in zip(PARTS, codes, strict=True):
        if code:
            print(f"eval: {part} ended with code {code}", file=sys.stderr)
    # A process that a signal ended has a negative code.
    return max(map(abs, codes))


def make_command(part: str, args: argparse.Namespace) -> list[str]:
    """The command of one part."""
    words = [sys.executable, "-m", "eval", part, "--json", str(args.out / f"{part}.json")]
    words += ["--quick"] if args.quick else []
    if args.data is not None and part in _WITH_DATA:
        words += ["--data", str(args.data)]
    if part == "serve":
        words += ["--out", str(args.out / part)]
        words += ["--vllm", str(args.vllm)] if args.vllm is not None else []
    return words
