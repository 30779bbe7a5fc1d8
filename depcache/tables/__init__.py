# SPDX-License-Identifier: Apache-2.0
"""Tables of a schema as the context of a prompt: who refers to whom, catalogs, readers, finders.

Names are imported when they are first used. Readers and finders need the extra `tables`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "catalog": ["Catalog", "Difference"],
    "find": ["CatalogFinder", "DdlFinder", "Found", "Hit"],
    "forms": ["FORMS", "Form"],
    "render": ["RenderedTables", "render_tables"],
    "sources": ["Loaded", "load"],
    "table": ["Table"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'depcache.tables' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"depcache.tables.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
