# SPDX-License-Identifier: Apache-2.0
"""Questions of made-up worlds have one right answer, and several come of each world."""

from __future__ import annotations

from collections import Counter

import pytest

from depcache.errors import ConfigError
from eval.workloads.made_up import MIN_PATHS, NUM_OF_WORLD, make_made_up


def test_they_are_the_same_each_time_and_of_many_worlds() -> None:
    asked = make_made_up(5 * NUM_OF_WORLD + 1, 20)
    assert asked == make_made_up(5 * NUM_OF_WORLD + 1, 20)
    worlds = Counter(each.world for each in asked)
    assert list(worlds.values()) == [NUM_OF_WORLD] * 5 + [1]
    paths = {each.world: each.paths for each in asked}
    assert len(set(paths.values())) == len(worlds)


def test_each_has_one_answer_that_is_two_hops_away_or_more() -> None:
    for each in make_made_up(40, 20):
        assert MIN_PATHS <= len(each.paths) <= 20
        [answer] = each.answers
        assert any(answer in path[4::2] for path in each.paths)


def test_too_few_paths_are_refused_and_not_looked_for_without_end() -> None:
    with pytest.raises(ConfigError, match="allow at least 8"):
        make_made_up(1, MIN_PATHS - 1)
