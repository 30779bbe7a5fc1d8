# SPDX-License-Identifier: Apache-2.0
"""Triples extracted by a real server: with a grammar backend, and with none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from depcache.graph.extraction import Chunk, extract_all
from depcache.graph.openai_extractor import OpenAIExtractor
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server

pytestmark = pytest.mark.sglang

CHUNKS = [Chunk("notes", "Ann wrote Blue."), Chunk("notes", "Bob wrote Red.")]


def test_answers_are_held_to_the_schema_and_one_that_is_cut_is_asked_for_again(
    served, tmp_path: Path
) -> None:
    answers: list[str] = []

    def keep(response: httpx.Response) -> None:
        response.read()
        answers.append(response.json()["choices"][0]["message"]["content"])

    with httpx.Client(timeout=SLOWEST_S, event_hooks={"response": [keep]}) as client:
        url = str(served.client.base_url)
        extractor = OpenAIExtractor(url, max_tokens=12, http_client=client)
        for num_retried in (0, 2):
            result = extract_all(CHUNKS, extractor, state=tmp_path / "state")
            assert (result.num_bad, result.num_retried) == (2, num_retried)
            assert "the answer was cut at --max-tokens 12" in result.problems[0]
    assert extractor.form == "json_schema"
    # A model of random weights, whose every answer begins as the schema says.
    assert len(answers) == 4
    assert all('{"triples":'.startswith(re.sub(r"\s", "", text)[:11]) for text in answers)


def test_a_server_without_a_grammar_backend_is_asked_in_words(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_server(model_path("llama_gqa"), log=tmp_path / "log") as client:
        extractor = OpenAIExtractor(str(client.base_url), max_tokens=12, http_client=client)
        result = extract_all(CHUNKS, extractor)
    assert extractor.form == "text"
    assert result.num_bad == 2 and "cut at --max-tokens" in result.problems[0]
