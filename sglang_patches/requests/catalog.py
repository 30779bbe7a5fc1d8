# SPDX-License-Identifier: Apache-2.0
"""The catalog whose tables this server finds in plain prompts; a route replaces it.

Nothing is found by it unless the setting `match_tables` or a request says so: a table does not see
all that stands before it, which can change the answer to a plain prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depcache.config import Config
from depcache.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog
    from depcache.tables.prompt_tables import PromptTables


class ServedCatalog:
    """The catalog of this process. A request that is being read goes on with the one it began with.

    matches  prompts are searched unless they say otherwise
    """

    def __init__(self) -> None:
        self.matches = False
        self._tables: PromptTables | None = None

    def set(self, config: Config) -> None:
        """Take over the settings. Raises ConfigError when the file holds no catalog."""
        self.matches, self._tables = config.match_tables, None
        if config.tables is None:
            return
        from depcache.tables.catalog import Catalog  # brings networkx

        try:
            self.replace(Catalog.read(config.tables))
        except PromptError as error:
            raise ConfigError(f"setting tables = {config.tables!r}: {error}") from None

    def replace(self, catalog: Catalog) -> None:
        """Find the tables of this one from now on; ConfigError without the extra `tables`."""
        from depcache.tables.prompt_tables import PromptTables

        self._tables = PromptTables.make(catalog)

    def tables(self, match: bool | None = None) -> PromptTables | None:
        """What finds tables in a request that says `match`; None where it is not searched."""
        return self._tables if (self.matches if match is None else match) else None

    def describe(self) -> dict[str, Any]:
        """What the route tells: names and references, not what stands in the tables."""
        catalog = None if self._tables is None else self._tables.catalog
        return {
            "match": self.matches,
            "digest": None if catalog is None else catalog.digest,
            "tables": [
                {
                    "name": table.name,
                    "characters": len(table.text),
                    "references": list(table.references),
                }
                for table in catalog or ()
            ],
        }


CATALOG = ServedCatalog()
"""That of this process."""
