# SPDX-License-Identifier: Apache-2.0
"""cognee: its graph completion, from edges to text to an answer, edges given."""

from __future__ import annotations

import asyncio
import os

from common import CHOSEN, ENTITIES, FACTS, MODEL, QUESTIONS, READS_FACTS, URL, tell

os.environ |= {
    "LLM_PROVIDER": "custom",
    "LLM_MODEL": f"openai/{MODEL}",
    "LLM_ENDPOINT": URL,
    "LLM_API_KEY": "none",
    "LLM_ARGS": '{"max_tokens": 8}',
    "TELEMETRY_DISABLED": "1",
    "LOG_LEVEL": "ERROR",
    "ENV": "test",
}

import litellm
from cognee.modules.graph.cognee_graph.CogneeGraphElements import Edge, Node
from cognee.modules.graph.utils.resolve_edges_to_text import resolve_edges_to_text
from cognee.modules.retrieval.utils.completion import generate_completion
from common import keep_what_is_said

import depcache

# The line of a user, for all calls of the process. The stock server is asked as cognee asks it.
if READS_FACTS:
    depcache.install("cognee")
else:
    depcache.install("litellm", auto=False)

keep_what_is_said(litellm.client_session)
keep_what_is_said(litellm.aclient_session)
nodes = {name: Node(name, {"name": name, "description": f"{name}."}) for name in ENTITIES}


async def main() -> None:
    for question, chosen in zip(QUESTIONS, CHOSEN, strict=True):
        facts = [FACTS[number] for number in chosen]
        edges = [
            Edge(nodes[a], nodes[b], {"relationship_name": name.replace(" ", "_")})
            for a, name, b in facts
        ]
        await generate_completion(
            question,
            await resolve_edges_to_text(edges),
            "graph_context_for_question.txt",
            "answer_simple_question.txt",
        )


asyncio.run(main())
tell("cognee", "async")
