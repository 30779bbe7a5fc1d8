# SPDX-License-Identifier: Apache-2.0
"""GraphRAG prompts of about so many tokens: trees of entities, until the context is full.

The same prompt can be asked as if it were new: what differs is a number at the start of its
system message, so that nothing behind it has ever been computed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from depcache.errors import ConfigError
from depcache.graph.base import GraphStore
from depcache.prompt.nodes import TreeNode
from depcache.prompt.prefix_tree import merge_sequences
from depcache.prompt.recompute import Recompute
from depcache.prompt.render import DEFAULT_SYSTEM, RenderedPrompt, render
from depcache.prompt.tokenization import PromptTokenizer
from eval.workloads.paths import NUM_HOPS, NUM_PATHS, EntityPaths

_TRIES = 50


@dataclass(frozen=True, slots=True)
class TierPrompt:
    """One prompt. `size` is the number of context tokens wanted, `num_tokens` of those it has."""

    number: int
    size: int
    num_tokens: int
    paths: tuple[tuple[str, ...], ...]
    question: str

    def render(self, version: int, recompute: Recompute | None = None) -> RenderedPrompt:
        """The request; two versions share no token's KV, two calls with one version all of it.

        recompute  for a fused request, whose facts are rows; None: they are trees
        """
        system = f"{version:04d}.{self.number:04d} {DEFAULT_SYSTEM}"
        return render(self.paths, self.question, system=system, recompute=recompute)


def make_prompts(
    store: GraphStore,
    tokenizer: PromptTokenizer,
    sizes: Sequence[int],
    count: int,
    *,
    num_hops: int = NUM_HOPS,
    max_paths: int = NUM_PATHS,
    max_entities: int = 0,
    first_number: int = 0,
    seed: int = 0,
) -> list[TierPrompt]:
    """`count` prompts of each size, the sizes in turn; always the same for the same arguments.

    max_paths     of each entity
    max_entities  of each prompt; 0 for as many as its size needs. Prompts may then be smaller

    Raises ConfigError when the graph gives no paths.
    """
    rng = random.Random(seed)
    names = sorted(store.names())
    paths_of = EntityPaths(store, num_hops=num_hops, num_paths=max_paths)
    prompts: list[TierPrompt] = []
    for _ in range(count):
        for size in sizes:
            order = rng.sample(names, min(len(names), max_entities or max(_TRIES, size // 5)))
            paths, num_tokens = _fill(paths_of, tokenizer, order, size)
            if not paths:
                raise ConfigError("the graph has no paths: choose another one, or more --hops")
            question = f"What is known of {order[0]}?"
            number = first_number + len(prompts)
            prompts.append(TierPrompt(number, size, num_tokens, tuple(paths), question))
    return prompts


def _fill(
    paths_of: EntityPaths, tokenizer: PromptTokenizer, names: Sequence[str], size: int
) -> tuple[list[tuple[str, ...]], int]:
    """Trees of one entity after the other, the last one cut, until there are `size` tokens."""
    paths: list[tuple[str, ...]] = []
    num_tokens = 0
    for name in names:
        found = list(paths_of.of(name))
        num_more = count_tokens(found, tokenizer)
        if num_tokens + num_more > size:
            while found and num_tokens + num_more > size:
                found.pop()
                num_more = count_tokens(found, tokenizer)
            return paths + found, num_tokens + num_more
        paths += found
        num_tokens += num_more
    return paths, num_tokens


def count_tokens(paths: Sequence[tuple[str, ...]], tokenizer: PromptTokenizer) -> int:
    """Tokens of a context as trees (paper, Algorithm 1)."""
    if not paths:
        return 0
    return len(merge_sequences(TreeNode("context", paths).encode(tokenizer))[0])
