# SPDX-License-Identifier: Apache-2.0
"""The plain prefix cache that nobody runs, against one written as a list of earlier prompts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.prompt.forest import Forest
from depcache.prompt.layout import read_layout
from tests.helpers.prompts import Tree, TreePrompt
from tests.helpers.strategies import prompts

pytestmark = pytest.mark.sglang


def forest_of(prompt: TreePrompt) -> Forest:
    return Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )


def flat_ref(prompt: TreePrompt) -> list[int]:
    """System, every way from root to leaf in full, task."""

    def ways(tree: Tree) -> list[list[int]]:
        run, below = tree
        return [run + way for child in below for way in ways(child)] if below else [run]

    facts = [token for tree in prompt.trees for way in ways(tree) for token in way]
    return prompt.system + facts + prompt.task


def common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(prompts(), st.sampled_from([None, "a tenant"])), max_size=6))
def test_it_finds_the_longest_beginning_that_an_earlier_prompt_has(
    asked: list[tuple[TreePrompt, str | None]],
) -> None:
    from sglang_patches.observe.prefix_estimate import PrefixEstimate

    estimate = PrefixEstimate()
    earlier: list[tuple[list[int], str | None]] = []
    seen: set[tuple[str | None, str, tuple[int, ...]]] = set()
    tails: list[tuple[list[int], object]] = []
    for prompt, tenant in asked:
        own = estimate.add(
            np.array(prompt.tokens, np.int64),
            forest_of(prompt),
            read_layout(prompt.layout),
            tenant,
            reused=prompt.num_tokens,  # as if all had been there from before
        )
        assert own is not None
        flat = flat_ref(prompt)
        found = max([common(flat, other) for other, whose in earlier if whose == tenant] or [0])
        assert own.flat_tokens == len(flat)
        assert own.plain_computed == len(flat) - min(found, len(flat) - 1)
        keys = [(tenant, prompt.layout, key) for key in prompt.keys if key is not None]
        # Behind the same context, in the layout that moves nothing, the task is reused as well.
        context = (tenant, prompt.layout, prompt.system, prompt.trees)
        behind = [common(prompt.task, other) for other, where in tails if where == context]
        num_tail = min(max(behind or [0]), len(prompt.task) - 1)
        num_seen = sum(key in seen for key in keys) + num_tail * (prompt.layout == "tree")
        assert own.computed == prompt.num_tokens - num_seen
        tails.append((prompt.task, context))
        earlier.append((flat, tenant))
        seen.update(keys)
    assert estimate.totals.prompts == len(asked)
    assert estimate.totals.tree_tokens == sum(prompt.num_tokens for prompt, _ in asked)


def test_what_was_measured_as_computed_stays_computed() -> None:
    from sglang_patches.observe.prefix_estimate import PrefixEstimate

    estimate = PrefixEstimate()
    prompt = TreePrompt([1, 2], [([3, 4], [])], [5])
    tokens = np.array(prompt.tokens, np.int64)
    for _ in range(2):  # evicted in between
        own = estimate.add(tokens, forest_of(prompt), "tree", None, reused=0)
        assert own is not None and own.computed == 5
    own = estimate.add(tokens, forest_of(prompt), "tree", None, reused=3)
    assert own is not None and own.computed == 2
    assert own.plain_computed == 1


def test_both_trees_stay_in_their_room_and_give_up_the_least_recently_used() -> None:
    from sglang_patches.observe.prefix_estimate import PrefixEstimate

    estimate = PrefixEstimate(capacity_tokens=20)
    first, *others = (
        TreePrompt([], [([10 * number, 10 * number + 1, 10 * number + 2], [])], [1, 2])
        for number in range(1, 6)
    )
    for other in others:
        for prompt in (first, other):
            own = estimate.add(
                np.array(prompt.tokens, np.int64), forest_of(prompt), "tree", None, reused=3
            )
            assert own is not None
            assert estimate._seen.num_tokens <= 20
            assert estimate._plain.num_tokens <= 20
    assert own.plain_computed == 5  # the last one is new
    again = estimate.add(np.array(first.tokens, np.int64), forest_of(first), "tree", None, 3)
    assert again is not None and (again.plain_computed, again.computed) == (1, 2)
    gone = estimate.add(np.array(others[0].tokens, np.int64), forest_of(others[0]), "tree", None, 3)
    assert gone is not None and gone.plain_computed == 5


def test_a_prompt_that_is_flat_without_bound_is_not_compared() -> None:
    from sglang_patches.observe.prefix_estimate import PrefixEstimate

    num = 1000  # a trunk of as many tokens as it has leaves: a million when flat
    forest = Forest.make(2 * num + 1, 0, [num, *([1] * num)], [-1, *([0] * num)])
    tokens = np.arange(2 * num + 1)
    estimate = PrefixEstimate()
    assert estimate.add(tokens, forest, "tree", None, reused=0) is None
    assert estimate.totals.prompts == 0
