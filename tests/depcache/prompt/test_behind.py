# SPDX-License-Identifier: Apache-2.0
"""What rows stand behind: what fits a prompt, the rows cut out with it, and what they have seen."""

from __future__ import annotations

import random

import numpy as np
import pytest

from depcache.errors import PromptError
from depcache.prompt.behind import check_behind, cut_rows, tokens_seen
from depcache.prompt.forest import Forest
from depcache.select import selectable
from tests.helpers.prompts import TreePrompt, grow, random_forest, random_tokens


def parts_of(prompt: TreePrompt) -> tuple[np.ndarray, Forest]:
    forest = Forest.make(
        prompt.num_tokens, len(prompt.system), prompt.segment_lens, prompt.segment_parents
    )
    return np.array(prompt.tokens, np.int64), forest


@pytest.fixture
def prompt() -> TreePrompt:
    rng = random.Random(2)
    return TreePrompt(random_tokens(rng, 4), random_forest(rng, 4), [9], "tree")


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        ([None, (3,)], "depcache_behind has 2 entries, but the prompt has 4 rows"),
        ([None, (3,), "text", None], "has the text 'text', but the prompt came as ids"),
        ([None, (3, -1), None, None], "-1 is in depcache_behind"),
        ([None, (2**31,), None, None], "2147483648 is in depcache_behind"),
        ([("4",), None, None, None], "has the text '4', but the prompt came as ids"),
        ([((3,), (-1,)), None, None, None], "-1 is in depcache_behind"),
    ],
)
def test_what_does_not_fit_the_prompt_is_refused(prompt: TreePrompt, behind, why: str) -> None:
    with pytest.raises(PromptError) as caught:
        check_behind(behind, parts_of(prompt)[1])
    assert why in str(caught.value)


@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (1, 3), (2,), ()])
def test_rows_are_cut_out_behind_what_they_stand_behind(prompt: TreePrompt, rows) -> None:
    behind = [None, [5, 6], None, [7]]
    tokens, forest = parts_of(prompt)
    ids = tuple(None if each is None else tuple(each) for each in behind)
    context, lens, parents = cut_rows(tokens, forest, rows, ids)
    chosen = TreePrompt(prompt.system, [prompt.trees[row] for row in rows], prompt.task)
    grown, _ = grow(chosen, [behind[row] for row in rows])
    assert context.tolist() == grown.tokens[len(grown.system) : grown.num_context]
    assert (lens, parents) == (grown.segment_lens, grown.segment_parents)
    context, lens, _ = cut_rows(tokens, forest, rows, None)
    assert context.tolist() == chosen.tokens[len(chosen.system) : chosen.num_context]
    assert lens == chosen.segment_lens


def test_what_a_row_has_seen_that_is_not_there_makes_all_of_it_selectable(
    prompt: TreePrompt,
) -> None:
    tokens, forest = parts_of(prompt)
    starts = [*forest.structure.tree_starts.tolist(), forest.task_start]
    nothing = tokens_seen(tokens, forest, (None,) * 4)
    assert selectable(forest, nothing).tolist() == selectable(forest).tolist()
    first = tokens_seen(tokens, forest, ((5, 6), None, None, None))
    assert set(selectable(forest, first)) - set(selectable(forest)) > set()
    assert set(range(starts[0], starts[1])) <= set(selectable(forest, first).tolist())


def test_a_row_behind_just_what_the_prompt_has_before_it_is_exact() -> None:
    prompt = TreePrompt([1, 2], [([3, 4], []), ([5, 6], []), ([7], [])], [9])
    tokens, forest = parts_of(prompt)
    assert selectable(forest).tolist() == [4, 5, 6]
    assert selectable(forest, tokens_seen(tokens, forest, (None, (3, 4), None))).tolist() == [6]
    longer = tokens_seen(tokens, forest, (None, (3, 3, 4), (5, 6)))
    assert selectable(forest, longer).tolist() == [4, 5, 6]
