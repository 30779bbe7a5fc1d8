# SPDX-License-Identifier: Apache-2.0
"""Commands as people run them, and the server with every tier that they are tried on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from depcache.client import Client
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server


def run_json(*arguments: object) -> dict[str, Any]:
    """What `depcache ARGUMENTS --json` prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "depcache.cli.main", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def serve_every_tier(model: Path, folder: Path) -> Iterator[Client]:
    """A server with every tier, the disk's in `folder`, which is killed in the end."""
    tiers = {
        "HOST_GB": "0.05",
        "DISK_GB": "0.05",
        "DISK_FOLDER": str(folder / "disk"),
        "LOAD_POLICY": "always",  # computing a tiny model is faster
    }
    environment = {f"DEPCACHE_{name}": value for name, value in tiers.items()}
    with start_server(model, log=folder / "log.txt", environment=environment) as http:
        yield Client(str(http.base_url), http_client=http)
