# SPDX-License-Identifier: Apache-2.0
"""A made-up set: a shop whose orders refer to two tables, a zoo, and what is asked about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHOP = {
    "db_id": "shop",
    "tables": [
        {
            "name": name,
            "label": label,
            "columns": [
                {"name": "id", "label": "id", "type": "number", "pk": True},
                {"name": column, "label": said, "type": "text", "pk": False},
            ],
        }
        for name, label, column, said in (
            ("orders", "orders", "buyer", "who bought it"),
            ("goods", "goods", "price", "price"),
            ("buyers", "buyers", "town", "home town"),
            ("towns", "towns", "mayor", "mayor"),
        )
    ],
    "foreign_keys": [
        ["orders.buyer", "buyers.id"],
        ["orders.id", "goods.id"],
        ["buyers.town", "towns.id"],
    ],
}
ZOO = {
    "db_id": "zoo",
    "tables": [
        {
            "name": name,
            "label": name,
            "columns": [{"name": "id", "label": "id", "type": "number", "pk": True}],
        }
        for name in ("animals", "keepers")
    ],
    "foreign_keys": [],
}
ASKED = (
    ("shop", "Which buyers have orders?", ["buyers", "orders"]),
    ("shop", "What is the price of the goods?", ["goods"]),
    ("shop", "Who is the mayor of the home town?", ["towns", "buyers"]),
    ("zoo", "How many animals are there?", ["animals"]),
)


def write_set(folder: Path, name: str, schemas: list[dict[str, Any]] | None = None) -> None:
    """Write the two files of a set of that name."""
    questions = [
        {"db_id": db, "question": text, "evidence": "", "gold_tables": gold}
        for db, text, gold in ASKED
    ]
    for kind, rows in (
        ("schemas", [SHOP, ZOO] if schemas is None else schemas),
        ("questions", questions),
    ):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}_{kind}.jsonl").write_text(text, encoding="utf-8")
