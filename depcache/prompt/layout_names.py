# SPDX-License-Identifier: Apache-2.0
"""The names of the position layouts, for those who only choose one: this needs no numpy."""

from __future__ import annotations

from typing import Literal, cast, get_args

from depcache.errors import PromptError, shorten

Layout = Literal["tree", "staggered", "sequential"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def read_layout(name: object) -> Layout:
    """`name` if it names a layout; PromptError with the choices if not."""
    if not isinstance(name, str) or name not in LAYOUTS:
        raise PromptError(f"{shorten(name)} is no position layout: use {', '.join(LAYOUTS)}")
    return cast(Layout, name)
