# SPDX-License-Identifier: Apache-2.0
"""Tables of a schema as the context of a prompt: who refers to whom, catalogs, readers, finders.

Names are imported when they are first used. Readers and finders need the extra `tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depcache.lazy import attach

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog, Difference
    from depcache.tables.find import CatalogFinder, DdlFinder, Found, Hit
    from depcache.tables.forms import FORMS, Form
    from depcache.tables.render import RenderedTables, render_tables
    from depcache.tables.sources import Loaded, load
    from depcache.tables.table import Table

__all__ = [
    "FORMS",
    "Catalog",
    "CatalogFinder",
    "DdlFinder",
    "Difference",
    "Form",
    "Found",
    "Hit",
    "Loaded",
    "RenderedTables",
    "Table",
    "load",
    "render_tables",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "catalog": ["Catalog", "Difference"],
        "find": ["CatalogFinder", "DdlFinder", "Found", "Hit"],
        "forms": ["FORMS", "Form"],
        "render": ["RenderedTables", "render_tables"],
        "sources": ["Loaded", "load"],
        "table": ["Table"],
    },
)
