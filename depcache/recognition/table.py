# SPDX-License-Identifier: Apache-2.0
"""The recognisers in force: those of the package, and one's own before them."""

from __future__ import annotations

from collections.abc import Iterable

from depcache.errors import PromptError, shorten
from depcache.recognition.formats import FORMATS
from depcache.recognition.recogniser import Recogniser

_OWN: dict[str, Recogniser] = {}


def recognisers() -> tuple[Recogniser, ...]:
    """All of them, in the order in which they are tried."""
    return (*_OWN.values(), *FORMATS)


def register_recogniser(recogniser: Recogniser) -> None:
    """Try this one as well, before those of the package; in this process, from now on.

    Raises PromptError if another has its name.
    """
    if not isinstance(recogniser, Recogniser):
        raise PromptError(f"{shorten(recogniser)} is no recogniser: make one with Recogniser(...)")
    known = {each.name: each for each in recognisers()}
    if known.get(recogniser.name, recogniser) != recogniser:
        raise PromptError(
            f"there is another recogniser named {recogniser.name!r}: choose a different name"
        )
    if recogniser.name not in known:
        _OWN[recogniser.name] = recogniser


def choose(names: Iterable[str] | None) -> tuple[Recogniser, ...]:
    """Those of these names, in the order of the table; all for None. PromptError if unknown."""
    table = recognisers()
    if names is None:
        return table
    wanted = {names} if isinstance(names, str) else set(names)
    unknown = sorted(map(str, wanted - {each.name for each in table}))
    if unknown:
        raise PromptError(
            f"{shorten(unknown[0])} is no recogniser: use "
            f"{', '.join(sorted(each.name for each in table))}"
        )
    return tuple(each for each in table if each.name in wanted)
