# SPDX-License-Identifier: Apache-2.0
"""Prefix-aware GDSF: the cost of a token is what its request paid for each token it computed."""

from __future__ import annotations

from depcache.cache.node import Node
from depcache.cache.policies.gdsf import TOKENS_OF_EQUAL_COST, Gdsf

# What a forward pass costs before its first token, in tokens.
TOKENS_OF_FIXED_COST = 64


class Pgdsf(Gdsf):
    """GDSF with the cost T(cached, computed) / computed of the request that computed the node.

    Jin et al., "RAGCache: Efficient Knowledge Caching for Retrieval-Augmented Generation",
    2024, section 5.1; there T is measured, here it is a formula. Both take the mean over the
    times the node was computed.
    """

    name = "pgdsf"

    def cost_per_token(self, node: Node) -> float:
        return node.cost or super().cost_per_token(node)

    def note_insertion(self, node: Node, num_cached: int, num_computed: int) -> None:
        super().note_insertion(node, num_cached, num_computed)
        if num_computed:
            attention = (num_cached + num_computed / 2) / TOKENS_OF_EQUAL_COST
            node.cost = 1.0 + TOKENS_OF_FIXED_COST / num_computed + attention
