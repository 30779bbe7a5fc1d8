# SPDX-License-Identifier: Apache-2.0
"""The commands that say how to install what is missing."""

from __future__ import annotations

TINY_COMMAND = "pip install ./models/tiny"
"""Installs depcache-tiny, which is on no index, in the root of a checkout."""

PLUGIN_COMMAND = "pip install ./sglang_patches"
"""Installs the plugin and the SGLang that it requires, in the root of a checkout."""


def install_command(extra: str = "") -> str:
    """Returns the command, in a checkout as from a wheel, for an extra or the base install.

    Who reads it has DepCache installed, so pip takes that DepCache, whichever it is, and adds
    what the extra names.
    """
    return f"pip install 'depcache[{extra}]'" if extra else "pip install depcache"


def server_command() -> str:
    """Returns the command for what serves, and the one that shows pip a checkout."""
    return f"{install_command('server')} (in a checkout of DepCache: {PLUGIN_COMMAND})"
