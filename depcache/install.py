# SPDX-License-Identifier: Apache-2.0
"""The one command that says how to install what is missing."""

from __future__ import annotations


def install_command(extra: str = "") -> str:
    """For a shell, in a checkout as from a wheel: an extra, or without one the base install.

    Who reads it has DepCache installed, so pip takes that DepCache, whichever it is, and adds
    what the extra names.
    """
    return f"pip install 'depcache[{extra}]'" if extra else "pip install depcache"
