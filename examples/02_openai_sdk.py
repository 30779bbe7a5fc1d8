# SPDX-License-Identifier: Apache-2.0
"""The OpenAI SDK: `depcache.render` makes the messages and the `extra_body`. Needs `openai`."""

import os

from facts import PATHS
from openai import OpenAI

import depcache

server = os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000")
client = OpenAI(base_url=f"{server}/v1", api_key="none")

prompt = depcache.render(PATHS, "What did Marie Curie win?")
reply = client.chat.completions.create(
    model="default", messages=prompt.messages, extra_body=prompt.extra_body, max_tokens=64
)
print("answer:", reply.choices[0].message.content)
print("reused:", reply.metadata.get("depcache"))
