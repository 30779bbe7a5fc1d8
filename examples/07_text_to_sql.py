# SPDX-License-Identifier: Apache-2.0
"""Text to SQL: ask about tables of an SQLite database, and see which were not computed again.

Needs the extra `tables`. depcache-tiny has never learned SQL: with it, look at what is reused.
"""

import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import depcache
from depcache.tables import load, render_tables

SCHEMA = """
CREATE TABLE artist (artist_id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE album (
    album_id INTEGER PRIMARY KEY, title TEXT, artist_id INTEGER REFERENCES artist (artist_id));
CREATE TABLE genre (genre_id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE track (
    track_id INTEGER PRIMARY KEY, name TEXT, price REAL,
    album_id INTEGER REFERENCES album (album_id), genre_id INTEGER REFERENCES genre (genre_id));
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, last_name TEXT, country TEXT);
CREATE TABLE invoice (
    invoice_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer (customer_id));
CREATE TABLE invoice_line (
    invoice_id INTEGER REFERENCES invoice (invoice_id),
    track_id INTEGER REFERENCES track (track_id), quantity INTEGER);
INSERT INTO artist VALUES (1, 'Ada and the Engines'), (2, 'The Looms');
INSERT INTO album VALUES (1, 'First Steps', 1), (2, 'Warp', 2), (3, 'Weft', 2);
"""

# A linker of your own chooses the tables of a question.
QUESTIONS = [
    ("How many albums has each artist?", ["album", "artist"]),
    ("What is the cheapest track of each genre?", ["track", "genre"]),
    ("Which country buys most albums of The Looms?", ["invoice_line", "customer", "artist"]),
]


def main(server: str, folder: Path) -> None:
    """Load the schema, then ask each question about its tables and all that they refer to."""
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        catalog = load(path).catalog
        with depcache.Client(server) as client:
            for question, tables in QUESTIONS:
                prompt = render_tables(catalog, tables, question)
                reply = client.chat(prompt.messages, max_tokens=64, **prompt.extra_body)
                report = reply.depcache or "unknown, the server runs without DepCache"
                print("tables:", ", ".join(prompt.tables))
                print("answer:", reply.text.strip())
                print("rows:", run(database, reply.text))
                print("reused:", report)


def run(database: sqlite3.Connection, answer: str) -> object:
    """The rows of a SELECT in an answer, with or without a fence; or why there are none."""
    lines = [line for line in answer.strip().splitlines() if not line.startswith("```")]
    query = "\n".join(lines)
    if not query.lstrip().lower().startswith("select"):
        return "the answer is no SELECT"
    # What a model writes may do anything, so the database takes no change while it runs.
    database.execute("PRAGMA query_only = ON")
    try:
        return database.execute(query).fetchall()
    except sqlite3.Error as error:
        return f"SQLite says: {error}"


with tempfile.TemporaryDirectory() as scratch:
    try:
        main(os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000"), Path(scratch))
    except depcache.DepCacheError as error:
        sys.exit(str(error))
