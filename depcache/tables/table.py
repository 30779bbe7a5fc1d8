# SPDX-License-Identifier: Apache-2.0
"""One entry of a schema: its name, how it is written in a prompt, and which tables it refers to.

Mostly a table. A column may be one too: what it refers to is its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten


@dataclass(frozen=True)
class Table:
    """A table as a prompt holds it.

    name        unique in its catalog, `schema.table` where the source names schemas
    text        what stands in the prompt, for example a CREATE TABLE statement
    references  names of the tables that its foreign keys lead to, ascending, each once; itself and
                unknown tables may be among them

    Raises PromptError for an empty name or text, and for what no request could carry.
    """

    name: str
    text: str
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.name, "the name of a table")
        _check(self.text, f"the text of table {shorten(self.name)}")
        if isinstance(self.references, str) or not isinstance(self.references, Sequence):
            raise PromptError(
                f"references of table {shorten(self.name)} are {shorten(self.references)}: send a "
                "list of names"
            )
        for name in self.references:
            _check(name, f"a reference of table {shorten(self.name)}")
        object.__setattr__(self, "references", tuple(sorted(set(self.references))))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {"name": self.name, "text": self.text, "references": list(self.references)}

    @classmethod
    def from_json(cls, data: Any) -> Table:
        """The table in a line of a catalog. Raises PromptError."""
        if not isinstance(data, dict):
            raise PromptError(f"a table is {shorten(data)}: write an object")
        unknown = sorted(set(data) - {"name", "text", "references"})
        if unknown:
            raise PromptError(
                f"{shorten(unknown[0])} is no key of a table: its keys are name, text, references"
            )
        return cls(data.get("name", ""), data.get("text", ""), data.get("references", ()))


def _check(value: object, what: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"{what} is {shorten(value)}: send some text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} is {shorten(value)}, which is no valid Unicode: leave out half characters"
        ) from error
