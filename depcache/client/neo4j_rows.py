# SPDX-License-Identifier: Apache-2.0
"""Records of neo4j-graphrag as relation paths: one line, an arrow between values.

Its own text of a record is `<Record a.name='X' type(r)='IN' b.name='Y'>`, the same names of columns
in every row. As a path, rows about the same entity begin alike, and the model reads no more than
the fact.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from depcache.errors import ConfigError

ARROW = " -> "


def neo4j_rows(record: Any) -> Any:
    """Format a record for `result_formatter` of any retriever of neo4j-graphrag.

        Text2CypherRetriever(..., result_formatter=depcache.neo4j_rows)

    record  neo4j.Record, or a mapping; entity, relation, entity, ... in the order of its columns

    Returns a `RetrieverResultItem`. A record that is no path, with an even number of values, fewer
    than three, or one that is no text or number, keeps the package's own text. Raises ConfigError
    where neo4j-graphrag is not installed.
    """
    try:
        make: Callable[..., Any] = import_module("neo4j_graphrag.types").RetrieverResultItem
    except ImportError as error:
        raise ConfigError(
            f"neo4j-graphrag is not installed here ({error}): install it first"
        ) from None
    return make(content=to_row(list(record.values())) or str(record), metadata=None)


def to_row(values: list[Any]) -> str | None:
    """The values as a path on one line; None for values that are none."""
    texts = [
        str(value).strip()
        for value in values
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    is_path = len(texts) == len(values) >= 3 and len(texts) % 2 == 1
    if not is_path or not all(text and len(text.splitlines()) == 1 for text in texts):
        return None
    return ARROW.join(texts)
