# SPDX-License-Identifier: Apache-2.0
"""Prompts that hold no facts give no outline; those with data may, but of the data alone."""

from __future__ import annotations

from depcache.recognition.recognise import recognise
from eval.recognise.ordinary import DATA, NUM_PROMPTS, TEXTS, make_prompts, measure_ordinary


def test_nothing_is_recognised_in_prose_code_poems_chats_logs_and_diffs() -> None:
    prompts = [prompt for prompt in make_prompts() if prompt.kind in TEXTS]
    assert len(prompts) > 400
    wrong = [each for each in prompts if recognise(each.text, deadline_s=None).outline is not None]
    assert [each.kind for each in wrong] == []


def test_of_tables_and_json_at_most_the_rows_are_recognised() -> None:
    counts = measure_ordinary(NUM_PROMPTS)
    assert (counts["prompts"], counts["wrong"]) == (NUM_PROMPTS, 0)
    assert {kind for kind, each in counts["kinds"].items() if each["outlines"]} <= set(DATA)


def test_the_prompts_are_the_same_every_time() -> None:
    assert make_prompts(60) == make_prompts(60) != make_prompts(60, seed=1)
