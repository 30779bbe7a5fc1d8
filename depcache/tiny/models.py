# SPDX-License-Identifier: Apache-2.0
"""The models that ship with DepCache; `weights/README.md` is their card."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from depcache.errors import ConfigError

TINY_NAME = "depcache-tiny"
"""What commands take for the folder of `TINY`."""

TINY = "dependency"
"""depcache-tiny: fine-tuned with dependency attention in all layouts; it reads flat text too."""

SELF_ATTENTION = "control"
"""What it is compared with: trained as it was, but in its last cycle on flat text only."""

BASE = "base"
"""What both come from: has never seen a tree. It does not ship: two are nearly 20 MB."""


def model_folder(name: str = TINY) -> Path:
    """The folder of a model that ships."""
    return Path(str(files("depcache").joinpath("tiny", "weights", name)))


def cycle_name(name: str, cycle: int) -> str:
    """`dependency`, `dependency-2`, ... of the cycles 1, 2, ..."""
    return name if cycle == 1 else f"{name}-{cycle}"


def cycles_of(run: Path, name: str) -> list[Path]:
    """Of a model in a folder of models: `dependency`, `dependency-2`, ..., as many as there are."""
    folders: list[Path] = []
    while ((folder := run / cycle_name(name, len(folders) + 1)) / "config.json").is_file():
        folders.append(folder)
    return folders


def resolve_model(model: str) -> str:
    """`depcache-tiny` becomes its folder; every other name stays what it is.

    Raises ConfigError where the weights are not there.
    """
    if model != TINY_NAME:
        return model
    if not model_folder().is_dir():
        raise ConfigError(
            f"{TINY_NAME} is not in this build: train it with depcache.tiny.train, or name a model"
        )
    return str(model_folder())
