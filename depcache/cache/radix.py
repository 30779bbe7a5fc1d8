# SPDX-License-Identifier: Apache-2.0
"""A compressed prefix tree over token ids: what every node of one has, whatever else it holds."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

TOKEN_BYTES = 4  # keys are raw int32 token ids, so a comparison of tokens is one memcmp


class RadixNode[N: RadixNode[Any]]:
    """A run of tokens with one parent. Siblings begin with different tokens.

    key       raw int32 token ids, `TOKEN_BYTES` each; compared as bytes, never as hashes
    parent    None for a root, which has no tokens
    children  first token id -> node
    """

    __slots__ = ("children", "key", "num_tokens", "parent")

    def __init__(self, key: bytes, parent: N | None) -> None:
        self.key = key
        self.num_tokens = len(key) // TOKEN_BYTES
        self.parent = parent
        self.children: dict[int, N] = {}

    @property
    def first_token(self) -> int:
        return first_token(self.key)

    def cut(self, upper: N) -> None:
        """Give the front of this run to `upper`, a new node with its tokens and parent.

        This one stays the end of the run, with its children.
        """
        assert self.parent is not None
        self.parent.children[upper.first_token] = upper
        self.key = self.key[len(upper.key) :]
        self.num_tokens -= upper.num_tokens
        self.parent = upper
        upper.children[self.first_token] = cast("N", self)


def first_token(key: bytes) -> int:
    """First token id of a raw key."""
    return int.from_bytes(key[:TOKEN_BYTES], "little", signed=True)


def to_key(tokens: np.ndarray) -> bytes:
    """Raw key of token ids (num_tokens,), any integer dtype."""
    return np.ascontiguousarray(tokens, dtype="<i4").tobytes()


def to_tokens(key: bytes) -> np.ndarray:
    """Token ids (num_tokens,) int32 of a raw key; read-only view."""
    return np.frombuffer(key, dtype="<i4")


def common_prefix_tokens(left: bytes, right: bytes) -> int:
    """Number of equal leading tokens of two raw keys."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // TOKEN_BYTES
    num = size // TOKEN_BYTES
    differs = to_tokens(left)[:num] != to_tokens(right)[:num]
    return int(differs.argmax())
