# SPDX-License-Identifier: Apache-2.0
"""LangChain: the Cypher chain of langchain-neo4j, over a store that gives the chosen records."""

from __future__ import annotations

import asyncio
from typing import Any

from common import CHOSEN, FACTS, MODEL, QUESTIONS, URL, clients, tell
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_neo4j import GraphCypherQAChain
from langchain_neo4j.graphs.graph_store import GraphStore
from langchain_openai import ChatOpenAI


class Records(GraphStore):
    """A store that answers every query with the facts of the question it is at."""

    question = 0
    structured_schema: Any = {"node_props": {}, "rel_props": {}, "relationships": []}  # noqa: RUF012
    schema = "(:Thing)-[:REL]->(:Thing)"
    get_schema, get_structured_schema = schema, structured_schema

    def query(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        chosen = [FACTS[number] for number in CHOSEN[self.question]]
        return [
            {"a.name": a, "type(r)": name.upper().replace(" ", "_"), "b.name": b}
            for a, name, b in chosen
        ]

    def refresh_schema(self) -> None:
        pass

    def add_graph_documents(self, *_: Any, **__: Any) -> None:
        pass


# The lines of a user: one keyword more in the call they have.
llm = ChatOpenAI(
    model=MODEL, base_url=URL, api_key="none", max_tokens=8, temperature=0, **clients("langchain")
)

store = Records()
chain = GraphCypherQAChain.from_llm(
    qa_llm=llm,
    cypher_llm=FakeListChatModel(responses=["MATCH (a)-[r]->(b) RETURN a.name, type(r), b.name"]),
    graph=store,
    allow_dangerous_requests=True,
)
for store.question, question in enumerate(QUESTIONS):
    chain.invoke({"query": question})
tell("LangChain, Cypher chain")


async def ask() -> None:
    lines = [" -> ".join(FACTS[number]) for number in CHOSEN[0]]
    await llm.ainvoke("Facts:\n" + "\n".join(lines) + "\n\n" + QUESTIONS[0])
    await llm.ainvoke("Facts:\n" + "\n".join(lines[::-1]) + "\n\n" + QUESTIONS[1])


asyncio.run(ask())
tell("LangChain, own prompt", "async")
