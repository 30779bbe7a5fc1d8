# SPDX-License-Identifier: Apache-2.0
"""A record shop: one schema, as SQL, as an SQLite file and as a tables.json."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

SQL = """
-- What the shop sells.
CREATE TABLE artist (
    artist_id INTEGER NOT NULL,
    name NVARCHAR(120),
    PRIMARY KEY (artist_id)
);

CREATE TABLE album (
    album_id INTEGER NOT NULL,
    title NVARCHAR(160) NOT NULL,
    artist_id INTEGER NOT NULL,
    PRIMARY KEY (album_id),
    FOREIGN KEY (artist_id) REFERENCES artist (artist_id)
);

CREATE TABLE genre (genre_id INTEGER NOT NULL, name NVARCHAR(120), PRIMARY KEY (genre_id));

CREATE TABLE track (
    track_id INTEGER NOT NULL,
    name NVARCHAR(200) NOT NULL,
    album_id INTEGER,
    genre_id INTEGER,
    price NUMERIC(10, 2) NOT NULL,
    PRIMARY KEY (track_id),
    FOREIGN KEY (album_id) REFERENCES album (album_id),
    FOREIGN KEY (genre_id) REFERENCES genre (genre_id)
);

-- Who sells, and who buys.
CREATE TABLE employee (
    employee_id INTEGER NOT NULL,
    last_name NVARCHAR(20) NOT NULL,
    reports_to INTEGER,
    PRIMARY KEY (employee_id),
    FOREIGN KEY (reports_to) REFERENCES employee (employee_id)
);

CREATE TABLE customer (
    customer_id INTEGER NOT NULL,
    last_name NVARCHAR(20) NOT NULL,
    country NVARCHAR(40),
    support_rep_id INTEGER,
    PRIMARY KEY (customer_id),
    FOREIGN KEY (support_rep_id) REFERENCES employee (employee_id)
);

CREATE TABLE invoice (
    invoice_id INTEGER NOT NULL,
    customer_id INTEGER NOT NULL,
    invoice_date DATETIME NOT NULL,
    PRIMARY KEY (invoice_id),
    FOREIGN KEY (customer_id) REFERENCES customer (customer_id)
);

CREATE TABLE invoice_line (
    invoice_id INTEGER NOT NULL,
    line_number INTEGER NOT NULL,
    track_id INTEGER NOT NULL,
    quantity INTEGER NOT NULL,
    PRIMARY KEY (invoice_id, line_number),
    FOREIGN KEY (invoice_id) REFERENCES invoice (invoice_id),
    FOREIGN KEY (track_id) REFERENCES track (track_id)
);

CREATE TABLE opening_hour (weekday INTEGER NOT NULL, opens TEXT, PRIMARY KEY (weekday));

CREATE VIEW best_seller AS SELECT track_id, SUM(quantity) AS sold FROM invoice_line GROUP BY 1;
"""

REFERENCES = {
    "artist": (),
    "album": ("artist",),
    "genre": (),
    "track": ("album", "genre"),
    "employee": ("employee",),
    "customer": ("employee",),
    "invoice": ("customer",),
    "invoice_line": ("invoice", "track"),
    "opening_hour": (),
}


def make_sqlite(path: Path, sql: str = SQL) -> Path:
    """The schema, or another one, as an SQLite file, without rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    return path


def make_sql(path: Path) -> Path:
    path.write_text(SQL, encoding="utf-8")
    return path


def make_json(path: Path, *names: str) -> Path:
    """The schema as Spider writes it, once for each database name."""
    path.write_text(json.dumps([to_json(name) for name in names or ("shop",)]), encoding="utf-8")
    return path


def to_json(name: str) -> dict[str, Any]:
    """One entry of a tables.json, read from SQLite's own catalog."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SQL)
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables = [row[0] for row in rows]
        columns: list[tuple[int, str]] = [(-1, "*")]
        types = ["text"]
        primary: list[int] = []
        for number, table in enumerate(tables):
            info = f"PRAGMA table_info({table})"
            for _, column, kind, _, _, key in connection.execute(info).fetchall():
                primary += [len(columns)] if key else []
                columns.append((number, column))
                types.append("number" if kind == "INTEGER" else "text")
        links: list[tuple[int, int]] = []
        for number, table in enumerate(tables):
            listed = f"PRAGMA foreign_key_list({table})"
            for _, _, target, source, target_column, *_ in connection.execute(listed).fetchall():
                links.append(
                    (
                        columns.index((number, source)),
                        columns.index((tables.index(target), target_column)),
                    )
                )
    return {
        "db_id": name,
        "table_names_original": tables,
        "table_names": [table.replace("_", " ") for table in tables],
        "column_names_original": columns,
        "column_names": [(number, name.replace("_", " ")) for number, name in columns],
        "column_types": types,
        "primary_keys": primary,
        "foreign_keys": links,
    }
