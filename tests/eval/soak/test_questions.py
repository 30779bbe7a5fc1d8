# SPDX-License-Identifier: Apache-2.0
"""An answer that lacks what was asked for is a ValueError."""

from __future__ import annotations

import json

import pytest

from eval.soak.questions import Request
from tests.eval.soak.made import prompt_of


def test_an_answer_that_lacks_something_is_a_value_error() -> None:
    request = Request(prompt_of("tree"), "/generate", {}, 1)
    with pytest.raises(ValueError, match="output_ids"):
        request.read('{"meta_info": {"output_token_logprobs": [], "output_top_logprobs": []}}')
    two = Request(prompt_of("tree"), "/v1/completions", {}, 1, num_choices=2)
    with pytest.raises(ValueError, match="2 answers were asked for and 0"):
        two.read('{"choices": []}')
    spoken = {"index": 0, "prompt_token_ids": [1], "token_ids": [5]}
    one = Request(prompt_of("tree"), "/v1/completions", {}, 1)
    with pytest.raises(ValueError, match="the prompt became"):
        one.read(json.dumps({"choices": [spoken]}))
