# SPDX-License-Identifier: Apache-2.0
"""GraphRAG-SDK: its LiteLLM provider and its assembly of a prompt, facts and passages given."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import litellm
from common import (
    CHOSEN,
    FACTS,
    MODEL,
    QUESTIONS,
    READS_FACTS,
    URL,
    keep_what_is_said,
    sentence,
    tell,
)
from graphrag_sdk.api.main import GraphRAG
from graphrag_sdk.core.providers import LiteLLM
from graphrag_sdk.retrieval.strategies import multi_path
from graphrag_sdk.retrieval.strategies.base import RetrievalStrategy
from graphrag_sdk.retrieval.strategies.result_assembly import (
    assemble_raw_result,
    detect_question_type,
)

import depcache

# The line of a user, for all calls of the process.
depcache.install("litellm", auto=READS_FACTS)

keep_what_is_said(litellm.client_session)
keep_what_is_said(litellm.aclient_session)


class Chosen(RetrievalStrategy):
    """Gives the facts of the question it is at, in the SDK's own format."""

    question = 0
    _format = multi_path.MultiPathRetrieval._format

    async def _execute(self, query: str, ctx: Any, **_: Any) -> Any:
        facts = [FACTS[number] for number in CHOSEN[self.question]]
        names = dict.fromkeys(name for a, _, b in facts for name in (a, b))
        entities = [(n, {"name": n, "description": f"{n} is in the notes."}) for n in names]
        lines = [
            f"{a} —[{name.upper().replace(' ', '_')}]→ {b}: {sentence((a, name, b))}"
            for a, name, b in facts
        ]
        passages = [" ".join(map(sentence, FACTS[i : i + 4])) for i in (0, 4)]
        kind = detect_question_type(query)
        return assemble_raw_result(entities, [], lines, passages, kind)


rag = GraphRAG.__new__(GraphRAG)
rag.llm = LiteLLM(model=f"openai/{MODEL}", api_base=URL, api_key="none", max_tokens=8)
rag._retrieval_strategy = strategy = Chosen()
rag._ensure_ontology_initialized = AsyncMock()
rag._validate_graph_config = AsyncMock()
rag._config_validated = True


async def main() -> None:
    for strategy.question, question in enumerate(QUESTIONS):
        await rag.completion(question)


asyncio.run(main())
tell("GraphRAG-SDK", "async")
