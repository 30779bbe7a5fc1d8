# SPDX-License-Identifier: Apache-2.0
"""The quick measurements that `python -m eval tables --quick` has besides counting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from depcache.errors import ServerError

SERVED = ("lake:sql:12",)
"""Whose requests real servers get: where most is gained."""

REPLAYED = ("whole:bird", "lake:sql:6")


def make_commands(
    data: Path, model: str, folder: Path, models: Path | None = None
) -> dict[Path, list[str]]:
    """Report to the arguments of `python -m eval` that write it.

    model   of the servers
    models  what `python -m models.tiny.train_tables` has written; None: no answers are looked at
    """
    at = ["--data", str(data)]
    served = ["serve", *at, "--model", model, "--workloads", *SERVED]
    served += ["--systems", "depcache", "sglang", "sglang-declared"]
    served += ["--stream", "8", "--warm", "6", "--load", "0", "--rounds", "1"]
    replayed = ["policy", "--tables", str(data), "--workloads", *REPLAYED]
    replayed += ["--policies", "lru", "lacr", "--schedulers", "fcfs", "lsp", "xor", "ldm"]
    replayed += ["--scheduled", "lru", "lacr", "--capacity-gb", "--capacity-share", "0.345"]
    replayed += ["--depths", "100", "--requests", "300", "--seeds", "0", "--jobs", "1"]
    ahead = ["tables", "--ahead", "--quick", *at, "--model", model]
    found = {"serve": served, "policy": replayed, "ahead": ahead}
    if models is not None:
        answers = ["tables", "--answers", "--quick", *at, "--models", str(models)]
        found["answers"] = [*answers, "--sets", "made_up"]
    files = {name: folder / f"{name}.json" for name in found}
    return {files[name]: [*words, "--json", str(files[name])] for name, words in found.items()}


def run_parts(commands: dict[Path, list[str]]) -> list[Path]:
    """Run them one after the other; returns their reports. Raises ServerError where one fails."""
    for words in commands.values():
        print(f"== {words[0]}", file=sys.stderr, flush=True)
        # Each in a process of its own: what one holds in memory must not slow the next.
        code = subprocess.run([sys.executable, "-m", "eval", *words]).returncode
        if code:
            raise ServerError(f"`python -m eval {words[0]}` ended with code {code}")
    return list(commands)
