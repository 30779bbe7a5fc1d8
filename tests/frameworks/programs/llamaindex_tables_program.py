# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex: the retriever that writes SQL, over its `SQLDatabase`."""

from __future__ import annotations

from common import MODEL, URL, clients, tell
from common_tables import ASKED, make_file
from llama_index.core import SQLDatabase
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.retrievers import NLSQLRetriever
from llama_index.llms.openai_like import OpenAILike
from sqlalchemy import create_engine

from depcache.tables import load

file = make_file()
# The lines of a user: the catalog, and one keyword more in the call they have.
catalog = load(file, form="llamaindex").catalog
llm = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key="none",
    max_tokens=8,
    temperature=0,
    is_chat_model=True,
    **clients("llamaindex", tables=catalog),
)

database = SQLDatabase(create_engine(f"sqlite:///{file}"))
for tables, question in ASKED:
    # The tables are named, so nothing is embedded; it wants something that could.
    retriever = NLSQLRetriever(
        database, tables=tables, llm=llm, embed_model=MockEmbedding(1), sql_only=True
    )
    retriever.retrieve(question)
tell("LlamaIndex, SQLDatabase")
