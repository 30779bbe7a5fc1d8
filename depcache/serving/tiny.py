# SPDX-License-Identifier: Apache-2.0
"""depcache-tiny, the small model, which is a distribution of its own (`models/tiny`)."""

from __future__ import annotations

from depcache.errors import ConfigError
from depcache.install_hints import TINY_COMMAND

TINY_NAME = "depcache-tiny"
"""What commands take for its folder."""


def resolve_model(model: str) -> str:
    """Returns the folder of `depcache-tiny`; every other name stays what it is.

    Raises ConfigError where depcache-tiny is not installed.
    """
    if model != TINY_NAME:
        return model
    try:
        import depcache_tiny
    except ImportError:
        raise ConfigError(
            f"{TINY_NAME} is not installed: {TINY_COMMAND} in a checkout of DepCache, "
            "or name another model"
        ) from None
    return str(depcache_tiny.path())
