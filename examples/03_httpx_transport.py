# SPDX-License-Identifier: Apache-2.0
"""One line for any user of the OpenAI SDK: `http_client=depcache.httpx_client()`. Needs `openai`.

LlamaIndex (`OpenAILike`), LangChain (`ChatOpenAI`) and neo4j-graphrag (`OpenAILLM`) take the same
`http_client`, and then need no other change.
"""

import os
import sys

from facts import PATHS
from openai import OpenAI, OpenAIError

import depcache

server = os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000")
# depcache-tiny was trained for facts merged into trees; leave `merge` out for other models.
http = depcache.httpx_client(merge=True)
client = OpenAI(base_url=f"{server}/v1", api_key="none", http_client=http)


def ask(content: str) -> None:
    """Send one message as any OpenAI-SDK user does."""
    try:
        reply = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": content}],
            max_tokens=64,
            temperature=0,
        )
    except OpenAIError as error:
        sys.exit(f"{server} gave no answer ({error}): start it with `depcache serve depcache-tiny`")
    print("answer:", reply.choices[0].message.content)
    # SGLang adds `metadata` to OpenAI's reply, and DepCache its report to that.
    report = (getattr(reply, "metadata", None) or {}).get("depcache")
    print("reused:", report or "unknown, the server runs without DepCache")


# Two or more lines "A -> relation -> B", as LlamaIndex writes them, are found by themselves.
ask(
    "Here are some facts:\n"
    "Marie Curie -> born in -> Warsaw\n"
    "Marie Curie -> won -> Nobel Prize in Physics\n\n"
    "Where was Marie Curie born?"
)

# Or name the paths from outside, however deep inside a framework the call is made.
with depcache.graph_context(PATHS) as facts:
    ask(f"Answer from these facts:{facts}\n\nWhere was Marie Curie born?")
