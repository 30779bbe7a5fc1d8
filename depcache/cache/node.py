# SPDX-License-Identifier: Apache-2.0
"""One node of the KV tree: a run of tokens with one parent, and where its KV lives."""

from __future__ import annotations

import numpy as np

TOKEN_BYTES = 4  # keys are raw int32 token ids, so a comparison of tokens is one memcmp


class Node:
    """A run of cached tokens. Tokens are compared as bytes, never as hashes.

    key       raw int32 token ids, `TOKEN_BYTES` each
    slots     (num_tokens,) int64, the KV slot of each token on the device
    home      position that the first token's key was rotated for; the rest follow one by one
    children  first token id -> node
    locks     users of this node: direct locks plus children that are locked themselves
    hits      requests that used this node
    last_use  tick of the tree's clock at the last use
    stamp     version of the node's entry in the eviction heap; older entries are void
    """

    __slots__ = (
        "children",
        "hits",
        "home",
        "key",
        "last_use",
        "locks",
        "num_tokens",
        "parent",
        "slots",
        "stamp",
    )

    def __init__(self, key: bytes, slots: np.ndarray, home: int, parent: Node | None) -> None:
        self.key = key
        self.num_tokens = len(key) // TOKEN_BYTES
        self.slots = slots
        self.home = home
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.hits = 0
        self.last_use = 0
        self.stamp = 0

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def first_token(self) -> int:
        return first_token(self.key)

    @property
    def is_evictable(self) -> bool:
        return not self.children and self.locks == 0 and self.parent is not None

    def __repr__(self) -> str:
        return (
            f"Node(num_tokens={self.num_tokens}, home={self.home}, "
            f"locks={self.locks}, children={len(self.children)})"
        )


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
