# SPDX-License-Identifier: Apache-2.0
"""What the commands have in common at their end: the report as JSON, and the machine it is of."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any


def write_report(report: dict[str, Any], to: Path | None) -> None:
    """Write a report as JSON to a file, to stdout for `-`, or nowhere for None."""
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if to is None:
        return
    if str(to) == "-":
        sys.stdout.write(text)
    else:
        to.write_text(text, encoding="utf-8")


def processor() -> str:
    """The name of the machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
