# SPDX-License-Identifier: Apache-2.0
"""What a table of a prompt sees, and what it refers to that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from depcache.errors import PromptError, shorten

if TYPE_CHECKING:
    from depcache.tables.catalog import Catalog

Sees = Literal["nothing", "references", "component"]
"""What a table sees beside the system and itself, always of the tables in the prompt alone:

nothing     no other table
references  those that it refers to, directly or not
component   those that hang together with it, whichever way references lead, and stand before it
"""

SEES: tuple[Sees, ...] = get_args(Sees)

DEFAULT_SEES: Sees = "references"


def read_sees(sees: str) -> Sees:
    """The same, as one of `SEES`; PromptError for any other."""
    for known in SEES:
        if sees == known:
            return known
    raise PromptError(f"sees is {shorten(sees)}: use one of {', '.join(SEES)}")


def see(catalog: Catalog, names: Sequence[str], sees: Sees) -> dict[str, list[str]]:
    """Returns what each table sees, where it sees others; what these see is left out.

    names  tables of the prompt, in the catalog's spelling, each once
    """
    if sees == "nothing":
        return {}
    here = set(names)
    if sees == "references":
        found = {name: _reach(catalog, name, here) for name in names}
        return {name: seen for name, seen in found.items() if seen}
    chains = [[n for n in component if n in here] for component in catalog.references.components]
    return {below: [above] for chain in chains for above, below in pairwise(chain)}


def count_absent(catalog: Catalog, names: Iterable[str]) -> int:
    """How many references lead from these tables to others, known to the catalog or not."""
    here = set(names)
    return sum(target not in here for name in here for target in catalog[name].references)


def _reach(catalog: Catalog, name: str, here: set[str]) -> list[str]:
    """The tables of `here` that `name` refers to, also through one that is not among them.

    What is reached through one of `here` is seen by that one, and not looked for: a chain of
    thousands would name millions.
    """
    found: list[str] = []
    passed, ahead = {name}, list(catalog[name].references)
    while ahead:
        other = ahead.pop()
        if other in passed or other not in catalog:
            continue
        passed.add(other)
        if other in here:
            found.append(other)
        else:  # nobody in the prompt names it
            ahead += catalog[other].references
    return sorted(found)
