# SPDX-License-Identifier: Apache-2.0
"""Triples that tests put into graphs, and what they must then find there."""

from __future__ import annotations

from depcache.graph import Edge

SMALL: list[tuple[str, str, str]] = [
    ("Ann", "knows", "Bob"),
    ("Bob", "knows", "Ann"),
    ("Ann", "works at", "Acme"),
    ("Bob", "works at", "Acme"),
    ("Acme", "is in", "Oslo"),
]
CYPHER = '"}) DETACH DELETE n //'
ODD_NAMES = [
    'O\'Brien "the" `quoted`',
    "line\nbreak\r\nand\ttab",
    "back\\slash\\",
    "emoji 🦋👩‍👩‍👧 and ẞ ﬁ",
    "right to left שלום",
    "\u2028\u2029\ufeff",
    CYPHER,
    "') MATCH (n) DELETE n RETURN ('",
    "$names {name: $batch} [1,2]",
    "CYPHER a=1 RETURN 1",
    "null",
    "3.14",
    " leading and trailing ",
    "x" * 10_000,
]


def edges_ref(triples: set[tuple[str, str, str]], name: str) -> list[Edge]:
    """The edges of an entity, straight from the triples."""
    forward = [Edge(r, True, t) for h, r, t in triples if h == name]
    inverse = [Edge(r, False, h) for h, r, t in triples if t == name != h]
    return sorted(forward + inverse)
