# SPDX-License-Identifier: Apache-2.0
"""What the programs about tables share: an SQLite file, and two questions over some of its tables.

Imported in the environments of the frameworks, like `common`.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

SCHEMA = """
CREATE TABLE artist (artist_id INTEGER NOT NULL, name NVARCHAR(120), PRIMARY KEY (artist_id));
CREATE TABLE album (
    album_id INTEGER NOT NULL, title NVARCHAR(160) NOT NULL, artist_id INTEGER NOT NULL,
    PRIMARY KEY (album_id), FOREIGN KEY (artist_id) REFERENCES artist (artist_id)
);
CREATE TABLE genre (genre_id INTEGER NOT NULL, name NVARCHAR(120), PRIMARY KEY (genre_id));
CREATE TABLE track (
    track_id INTEGER NOT NULL, name NVARCHAR(200) NOT NULL, album_id INTEGER, genre_id INTEGER,
    price NUMERIC(10, 2) NOT NULL, PRIMARY KEY (track_id),
    FOREIGN KEY (album_id) REFERENCES album (album_id),
    FOREIGN KEY (genre_id) REFERENCES genre (genre_id)
);
CREATE TABLE "Order Line" (
    "Line No" INTEGER NOT NULL, track_id INTEGER NOT NULL, quantity INTEGER DEFAULT 1,
    PRIMARY KEY ("Line No"), FOREIGN KEY (track_id) REFERENCES track (track_id)
);
CREATE TABLE opening_hour (weekday INTEGER NOT NULL, opens TEXT, PRIMARY KEY (weekday));
INSERT INTO artist VALUES (1, 'Ines Marto'), (2, 'Emil Kvist');
INSERT INTO album VALUES (1, 'Salt Lock', 1), (2, 'Vell', 2);
INSERT INTO genre VALUES (1, 'Fado'), (2, 'Polska');
INSERT INTO track VALUES (1, 'Ambra', 1, 1, 0.99), (2, 'Siv', 2, 2, 1.29);
INSERT INTO "Order Line" VALUES (1, 2, 3), (2, 1, 1);
INSERT INTO opening_hour VALUES (1, '09:00'), (2, '10:00');
"""

ASKED = [
    (["track", "album", "artist", "Order Line"], "How many tracks has each artist sold?"),
    (["opening_hour", "artist", "track", "album"], "On which days can I buy an album?"),
]
"""Tables for each question, as a linker would find them; three are in both."""


def make_file(folder: Path | None = None) -> Path:
    """An SQLite file with the schema and its rows; without a folder in one of its own."""
    path = (folder or Path(tempfile.mkdtemp(prefix="depcache-shop-"))) / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    return path
