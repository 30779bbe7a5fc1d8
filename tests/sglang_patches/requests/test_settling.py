# SPDX-License-Identifier: Apache-2.0
"""The requests that settle rows: what each holds, in which round, and that none is too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from depcache.prompt.behind import Behind
from depcache.prompt.forest import Forest
from depcache.select import ByScore
from depcache.select.scored import Scorer
from sglang_patches.requests.inner import STORING
from sglang_patches.requests.scoring import SCORING
from sglang_patches.requests.settling import SETTLES, make_settling

TOKENS = np.array([1, 2, 10, 11, 20, 30, 31, 32, 40, 50])
FOREST = Forest.make(10, 2, [2, 1, 3, 1], [-1] * 4)
BEHIND: Behind = (None, (5, 6), ((7,), (8, 9)), ((8, 9), (7,)))


class Request(SimpleNamespace):
    """In the place of SGLang's GenerateReqInput, which is made of keywords too."""


def make(rows: tuple[int, ...], max_tokens: int = 100) -> list[list[Any]]:
    obj = Request(rid="r")
    return make_settling(obj, TOKENS, FOREST, rows, BEHIND, max_tokens)


def told(request: Any) -> tuple[list[int], list[int], list[int], bool]:
    params = request.sampling_params["custom_params"]
    return (
        request.input_ids,
        params["depcache_segment_lens"],
        params["depcache_segment_parents"],
        getattr(request, STORING, False),
    )


def to_lists(part: Any) -> Any:
    return part if isinstance(part, int) else list(part)


def test_what_stands_behind_one_chunk_at_most_takes_one_round() -> None:
    [[request]] = make((0, 1))
    assert told(request) == ([1, 2, 10, 11, 5, 6, 20, 50], [2, 2, 1], [-1, -1, 1], False)
    assert getattr(request, SETTLES) and request.rid == "r/settle"


def test_behind_several_a_row_comes_after_them_and_by_itself() -> None:
    [alone], storing = make((0, 2, 3))
    assert told(alone) == ([1, 2, 10, 11, 7, 8, 9, 50], [2, 1, 2], [-1] * 3, False)
    assert [told(request) for request in storing] == [
        ([1, 2, 7, 8, 9, 30, 31, 32, 50], [1, 2, 3], [-1] * 3, True),
        ([1, 2, 8, 9, 7, 40, 50], [2, 1, 1], [-1] * 3, True),
    ]
    for request in storing:
        params = request.sampling_params["custom_params"]
        assert (params["depcache_see"], params["depcache_selected"]) == ("fused", [])
    assert len({request.rid for request in (alone, *storing)}) == 3


def test_chunks_that_do_not_fit_one_request_are_computed_in_several() -> None:
    first, _ = make((0, 2), max_tokens=7)
    assert [told(request)[0] for request in first] == [[1, 2, 10, 11, 7, 50], [1, 2, 8, 9, 50]]
    assert len({request.rid for request in first}) == 2


def make_scored(scorer: Scorer, rows: tuple[int, ...]) -> list[list[Any]]:
    by_score = ByScore(np.array([], np.int64), (2,), scorer=scorer)
    return make_settling(Request(rid="r"), TOKENS, FOREST, rows, None, 100, by_score)


def test_rows_are_settled_and_scored_by_the_question_alone_in_one_request() -> None:
    for rows in ((), (0, 2)):
        [[request]] = make_scored("query", rows)
        assert request.input_ids == [*TOKENS, 50]
        assert request.sampling_params["custom_params"].get("depcache_layout", "tree") == "tree"
        assert getattr(request, SCORING)["scorer"] == "query"


@pytest.mark.parametrize("scorer", ["query", "query-context", "deviation"])
def test_rows_behind_others_are_scored_where_they_stand(scorer: Scorer) -> None:
    by_score = ByScore(np.array([], np.int64), (2,), scorer=scorer, seen=np.array([0, -9, -9]))
    asked = Request(rid="r"), TOKENS, FOREST, (0, 1, 2), BEHIND, 100, by_score
    [alone], storing, [scoring] = make_settling(*asked)
    assert told(alone)[0][-1] == 50 and getattr(storing[0], STORING)
    assert scoring.input_ids[: len(TOKENS) - 1] == TOKENS[:-1].tolist()
    params = scoring.sampling_params["custom_params"]
    expected = [entry and [*map(to_lists, entry)] for entry in BEHIND]
    assert params["depcache_behind"] == expected
    assert getattr(scoring, SCORING)["seen"] == [0, -9, -9]


@pytest.mark.parametrize(
    ("scorer", "tail"), [("query-context", [50, 50]), ("deviation", [50])], ids=str
)
def test_what_scores_rows_where_they_stand_comes_when_they_are_settled(
    scorer: Scorer, tail: list[int]
) -> None:
    [[settling], [scoring]] = make_scored(scorer, (0, 2))
    assert told(settling) == ([1, 2, 10, 11, 30, 31, 32, 50], [2, 3], [-1] * 2, False)
    assert getattr(settling, SCORING, None) is None
    assert scoring.input_ids == [*TOKENS[:-1], *tail]
    params = scoring.sampling_params["custom_params"]
    assert (params["depcache_see"], params["depcache_selected"]) == ("fused", [])
    assert getattr(scoring, SCORING)["scorer"] == scorer and getattr(scoring, SETTLES)
    assert scoring.rid != settling.rid
    [[alone]] = make_scored(scorer, ())
    assert alone.input_ids == scoring.input_ids
