# SPDX-License-Identifier: Apache-2.0
"""Modules of the extra `tables`, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from depcache.errors import ConfigError
from depcache.install_hints import install_command


def need(module: str) -> Any:
    """The module of this name. Raises ConfigError, which says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ConfigError(f"tables need {name}: {install_command('tables')}") from None
