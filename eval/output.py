# SPDX-License-Identifier: Apache-2.0
"""What the subcommands share: arguments, the report as JSON, and what it was measured with."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depcache.errors import ConfigError
from depcache.install_hints import install_command

PACKAGES = ("depcache", "sglang", "torch", "transformers")


def add_output(parser: ArgumentParser, *, quick: str) -> None:
    """The arguments --quick and --json. `quick` says what becomes less."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, help="file for the report; - is stdout")


def require(*modules: str) -> None:
    """ConfigError if one of these modules of the extra `bench` is missing."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing: {install_command('bench')}")


def about(args: Namespace, seconds: float) -> dict[str, Any]:
    """What a report says of itself: date, commit, command, seconds, versions, machine."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **_commit(),
        "command": args.command,
        "seconds": round(seconds, 1),
        "versions": _versions() | {"python": platform.python_version()},
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "os": platform.system(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def command_line(arguments: Sequence[str]) -> str:
    """What to call to measure this again; where things lie on this machine is left out."""
    words = ["PATH" if os.sep in word else word for word in arguments]
    return shlex.join(["python", "-m", "eval", *words])


def write_report(report: dict[str, Any], to: Path | None) -> None:
    """Write a report as JSON to a file, to stdout for `-`, or nowhere for None."""
    if to is None:
        return
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if str(to) == "-":
        sys.stdout.write(text)
    else:
        to.write_text(text, encoding="utf-8")


def write_rows(args: Namespace, command: str, started: float, rows: list[dict[str, Any]]) -> None:
    """Write what a small benchmark has measured to `args.json`, if it is given.

    command  what measures it again
    started  `time.perf_counter()` at its start
    """
    args.command = command
    said = about(args, time.perf_counter() - started)
    write_report(said | {"better": "lower", "rows": rows}, args.json)


def _commit() -> dict[str, Any]:
    """The commit of the code, and whether it has changes; {} outside a repository."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # retrieval and policy need no server
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
