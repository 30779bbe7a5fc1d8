# SPDX-License-Identifier: Apache-2.0
"""Questions about tables that refer to each other anyhow."""

from __future__ import annotations

import random

from depcache.tables.table import Table
from depcache.training.examples import Example


def about_tables(rng: random.Random, num_tables: int = 6) -> Example:
    """A question about tables that refer to each other anyhow: chains, diamonds, cycles."""
    names = [f"t{i}" for i in range(num_tables)]
    tables = []
    for i, name in enumerate(names):
        others = rng.sample(names, rng.randint(0, 2)) if i else []
        lines = [f"  {name}_id INTEGER", *(f"  {other}_id REFERENCES {other}" for other in others)]
        ddl = f"CREATE TABLE {name} (\n" + ",\n".join(lines) + "\n)"
        tables.append(Table(name, ddl, tuple(others)))
    rng.shuffle(tables)
    return Example("How many t0?", (), "SELECT count(*) FROM t0", tables=tuple(tables))
