# SPDX-License-Identifier: Apache-2.0
"""LightRAG: a graph that is given, asked in two modes, with keywords that are given too."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import numpy as np
from common import (
    ENTITIES,
    FACTS,
    KEYWORDS,
    MODEL,
    QUESTIONS,
    URL,
    clients,
    embed,
    sentence,
    tell,
)  # fmt: skip
from lightrag import LightRAG, QueryParam
from lightrag.llm.openai import openai_complete_if_cache
from lightrag.utils import EmbeddingFunc, Tokenizer

# The line of a user: keywords for every call.
OPTIONS = clients("lightrag")


class Words:
    """A tokenizer that needs no download: LightRAG counts with it, and that is all."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


async def complete(prompt: str, system_prompt: Any = None, **keywords: Any) -> Any:
    keywords.pop("hashing_kv", None)
    return await openai_complete_if_cache(
        MODEL, prompt, system_prompt=system_prompt, base_url=URL, api_key="none",
        max_tokens=8, temperature=0, **OPTIONS, **keywords,
    )  # fmt: skip


async def embed_all(texts: list[str], **_: Any) -> Any:
    return np.array([embed(text) for text in texts])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rag = LightRAG(
            working_dir=folder,
            llm_model_func=complete,
            embedding_func=EmbeddingFunc(embedding_dim=64, max_token_size=8192, func=embed_all),
            tokenizer=Tokenizer("words", Words()),
            enable_llm_cache=False,
        )
        await rag.initialize_storages()
        await rag.ainsert_custom_kg(
            {
                "chunks": [
                    {
                        "content": " ".join(map(sentence, FACTS[i : i + 4])),
                        "source_id": f"doc-{i}",
                        "file_path": "notes.txt",
                        "chunk_order_index": i // 4,
                    }
                    for i in range(0, len(FACTS), 4)
                ],
                "entities": [
                    {
                        "entity_name": name,
                        "entity_type": "thing",
                        "description": f"{name} is in the notes.",
                        "source_id": "doc-0",
                        "file_path": "notes.txt",
                    }
                    for name in ENTITIES
                ],
                "relationships": [
                    {
                        "src_id": a,
                        "tgt_id": b,
                        "description": sentence((a, name, b)),
                        "keywords": name,
                        "weight": 1.0,
                        "source_id": f"doc-{number // 4 * 4}",
                        "file_path": "notes.txt",
                    }
                    for number, (a, name, b) in enumerate(FACTS)
                ],
            }
        )
        for mode in ("mix", "hybrid"):
            for question, keywords in zip(QUESTIONS, KEYWORDS, strict=True):
                param = QueryParam(
                    mode=mode, top_k=8, enable_rerank=False,
                    hl_keywords=["place"], ll_keywords=keywords,
                )  # fmt: skip
                await rag.aquery(question, param=param)
            tell(f"LightRAG, {mode}", "async")


asyncio.run(main())
