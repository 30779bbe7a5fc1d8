# SPDX-License-Identifier: Apache-2.0
"""What the stages of the training are called, and where their models lie, here and in a run."""

from __future__ import annotations

from pathlib import Path

from depcache.tables.seen import SEES

TINY = "dependency"
"""depcache-tiny: fine-tuned with dependency attention in all layouts; it reads flat text too."""

SELF_ATTENTION = "control"
"""What it is compared with: trained as it was, but in its last cycle on flat text only."""

BASE = "base"
"""What both come from: has never seen a tree. That of their own run is not kept."""

ORDINARY = "flat"
"""A reader of tables that was trained as any model is: every token sees all before it."""

TABLE_MODES = (ORDINARY, *SEES)
"""The readers of tables that are compared, each from the same base, by what a table sees."""

RECIPE = Path(__file__).parent
"""The folder of this recipe."""

KEPT = {TINY: Path("depcache_tiny", "model"), SELF_ATTENTION: Path("control")}
"""Where in it the models are that are kept."""

FLAT = RECIPE / "flat"
"""A model as it comes, for `eval chunks --rows`: the third cycle of a base with a run of its own.

It has seen flat text only. The two above do not come from it, so its folder is not called `base`:
`eval quality` would compare them with it.
"""


def kept_folder(name: str = TINY) -> Path:
    """Returns the folder of a model that is kept."""
    return RECIPE / KEPT[name]


def cycle_name(name: str, cycle: int) -> str:
    """Returns `dependency`, `dependency-2`, ... for the cycles 1, 2, ..."""
    return name if cycle == 1 else f"{name}-{cycle}"


def cycles_of(run: Path, name: str) -> list[Path]:
    """Returns the folders of a model in a run: `dependency`, `dependency-2`, ..., those there."""
    folders: list[Path] = []
    while ((folder := run / cycle_name(name, len(folders) + 1)) / "config.json").is_file():
        folders.append(folder)
    return folders
