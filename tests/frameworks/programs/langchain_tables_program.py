# SPDX-License-Identifier: Apache-2.0
"""LangChain: the chain that writes SQL, over `SQLDatabase` with sample rows."""

from __future__ import annotations

from common import MODEL, URL, clients, tell
from common_tables import ASKED, make_file
from langchain_classic.chains import create_sql_query_chain
from langchain_community.utilities import SQLDatabase
from langchain_openai import ChatOpenAI

# The lines of a user: one keyword more in the call they have.
llm = ChatOpenAI(
    model=MODEL,
    base_url=URL,
    api_key="none",
    max_tokens=8,
    temperature=0,
    **clients("langchain", tables="ddl"),
)

database = SQLDatabase.from_uri(f"sqlite:///{make_file()}", sample_rows_in_table_info=2)
chain = create_sql_query_chain(llm, database)
for tables, question in ASKED:
    chain.invoke({"question": question, "table_names_to_use": tables})
tell("LangChain, SQLDatabase")
