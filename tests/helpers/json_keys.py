# SPDX-License-Identifier: Apache-2.0
"""What a page of the docs says that a command prints with `--json`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "use" / "tables.md"


def documented_keys(command: str) -> set[str]:
    """The words in backticks in the row of a command of `depcache tables`."""
    section = PAGE.read_text(encoding="utf-8").partition("## What `--json` prints")[2]
    [row] = [line for line in section.splitlines() if line.startswith(f"| `{command}` |")]
    return set(re.findall(r"`([a-z_]+)`", row)) - {command}


def keys_of(schema: dict[str, Any]) -> set[str]:
    """The keys of an object that a JSON Schema describes, and of the objects in its lists."""
    found: set[str] = set()
    for name, each in schema["properties"].items():
        found.add(name)
        items = each.get("items", {})
        found |= keys_of(items) if "properties" in items else set()
    return found
