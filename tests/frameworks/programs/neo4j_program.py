# SPDX-License-Identifier: Apache-2.0
"""neo4j-graphrag: its own answer prompt over a retriever of ours, one record a fact."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import neo4j
from common import CHOSEN, FACTS, MODEL, QUESTIONS, URL, clients, tell
from neo4j_graphrag.generation import GraphRAG
from neo4j_graphrag.llm import OpenAILLM
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.types import RawSearchResult

import depcache


class Chosen(Retriever):
    """Gives the facts of the question it is at; there is no database behind it."""

    VERIFY_NEO4J_VERSION = False

    def __init__(self) -> None:
        self.driver = MagicMock(spec=neo4j.Driver)
        self.question = 0

    def get_search_results(self, query_text: str, **_: Any) -> RawSearchResult:
        facts = [FACTS[number] for number in CHOSEN[self.question]]
        return RawSearchResult(
            records=[
                neo4j.Record({"a.name": a, "type(r)": name.upper().replace(" ", "_"), "b.name": b})
                for a, name, b in facts
            ]
        )


# The lines of a user: one keyword more in the call they have.
llm = OpenAILLM(
    model_name=MODEL, base_url=URL, api_key="none",
    model_params={"max_tokens": 8, "temperature": 0}, **clients("neo4j-graphrag"),
)  # fmt: skip

retriever = Chosen()
rag = GraphRAG(retriever=retriever, llm=llm)
for retriever.question, question in enumerate(QUESTIONS):
    rag.search(query_text=question)
tell("neo4j-graphrag, records")

# As `Text2CypherRetriever(..., result_formatter=depcache.neo4j_rows)` sets it.
retriever.result_formatter = depcache.neo4j_rows
for retriever.question, question in enumerate(QUESTIONS):
    rag.search(query_text=question)
tell("neo4j-graphrag, neo4j_rows")
