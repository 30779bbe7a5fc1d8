# SPDX-License-Identifier: Apache-2.0
"""What is written to disk, and when."""

from __future__ import annotations

from depcache.cache import Node, Root

WRITE_POLICIES = {"write_back": None, "write_through_selective": 2, "write_through": 1}
"""SGLang's names -> uses after which a node is written although it is still on the device."""


def is_for_disk(top: Node | None) -> bool:
    """Whether what is below `top`, a root, may be written: all but tails.

    A fact is asked for again after days; a conversation is mostly over. Each would write a value
    of few tokens that names its whole context, and keep its key in memory to be found by.
    """
    return isinstance(top, Root) and not top.is_tail
