# SPDX-License-Identifier: Apache-2.0
"""What is refused is counted once, questions are not, and other errors are none of ours."""

from __future__ import annotations

import pytest

from depcache.errors import PromptError
from sglang_patches.http.rejections import counting_rejections, num_rejected, trial

pytestmark = pytest.mark.sglang


def refuse() -> None:
    with counting_rejections():
        raise PromptError("no")


def test_a_refusal_is_counted_and_goes_on_to_the_client() -> None:
    before = num_rejected()
    with pytest.raises(PromptError, match="no"):
        refuse()
    assert num_rejected() == before + 1


def test_what_is_accepted_or_fails_otherwise_is_not_counted() -> None:
    before = num_rejected()
    with counting_rejections():
        pass
    with pytest.raises(ValueError, match="else"), counting_rejections():
        raise ValueError("something else")
    assert num_rejected() == before


def test_a_question_that_is_refused_is_not_counted_and_the_next_request_is() -> None:
    before = num_rejected()
    with pytest.raises(PromptError), trial():
        refuse()
    assert num_rejected() == before
    with pytest.raises(PromptError):
        refuse()
    assert num_rejected() == before + 1
