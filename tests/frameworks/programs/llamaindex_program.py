# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex: a property graph index, paths alone and paths between passages."""

from __future__ import annotations

import asyncio
from typing import Any

from common import ENTITIES, FACTS, MODEL, QUESTIONS, URL, clients, embed, sentence, tell
from llama_index.core import PropertyGraphIndex, Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import KG_SOURCE_REL, ChunkNode, EntityNode, Relation
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever
from llama_index.core.schema import TextNode
from llama_index.llms.openai_like import OpenAILike


class Words(BaseEmbedding):
    """Embeds by the words of a text."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


# The lines of a user: one keyword more in the call they have.
llm = OpenAILike(
    model=MODEL, api_base=URL, api_key="none", is_chat_model=True, max_tokens=8, temperature=0.0,
    **clients("llamaindex"),
)  # fmt: skip

Settings.llm, Settings.embed_model = llm, Words()
store = SimplePropertyGraphStore()
nodes = {name: EntityNode(name=name, label="THING", embedding=embed(name)) for name in ENTITIES}
texts = [" ".join(map(sentence, FACTS[i : i + 4])) for i in range(0, len(FACTS), 4)]
chunks = [ChunkNode(text=text, id_=f"chunk {i}") for i, text in enumerate(texts)]
store.upsert_nodes([*nodes.values(), *chunks])
store.upsert_relations(
    [
        Relation(label=name.upper().replace(" ", "_"), source_id=nodes[a].id, target_id=nodes[b].id)
        for a, name, b in FACTS
    ]
)
index = PropertyGraphIndex.from_existing(
    property_graph_store=store, llm=llm, embed_model=Words(), embed_kg_nodes=False
)


class ByName(BasePGRetriever):
    """What is around the entities that the question names; the store has no vectors."""

    def retrieve_from_graph(self, query_bundle: Any, limit: int | None = None) -> Any:
        named = [nodes[name] for name in ENTITIES if name in query_bundle.query_str]
        paths = self._graph_store.get_rel_map(named, depth=2, limit=12, ignore_rels=[KG_SOURCE_REL])
        return self._get_nodes_with_score(paths)

    async def aretrieve_from_graph(self, query_bundle: Any, limit: int | None = None) -> Any:
        return self.retrieve_from_graph(query_bundle, limit)


def engine(*, include_text: bool) -> Any:
    retriever = ByName(store, include_text=include_text)
    return index.as_query_engine(llm=llm, sub_retrievers=[retriever])


for question in QUESTIONS:
    engine(include_text=False).query(question)
tell("LlamaIndex, paths")

for question in QUESTIONS:
    asyncio.run(engine(include_text=False).aquery(question))
tell("LlamaIndex, paths", "async")

for number, (name, _, _) in enumerate(FACTS):
    store.graph.nodes[nodes[name].id].properties["triplet_source_id"] = f"chunk {number // 4}"
store.upsert_llama_nodes([TextNode(text=chunk.text, id_=chunk.id_) for chunk in chunks])
for question in QUESTIONS:
    engine(include_text=True).query(question)
tell("LlamaIndex, paths between passages")
