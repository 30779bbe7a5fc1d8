# SPDX-License-Identifier: Apache-2.0
"""The OpenAI SDK: `depcache.render` makes the messages and the `extra_body`. Needs `openai`."""

import os
import sys

from facts import PATHS
from openai import OpenAI, OpenAIError

import depcache

server = os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000")
client = OpenAI(base_url=f"{server}/v1", api_key="none")

prompt = depcache.render(PATHS, "What did Marie Curie win?")
try:
    reply = client.chat.completions.create(
        model="default",
        messages=prompt.messages,
        extra_body=prompt.extra_body,
        max_tokens=64,
        temperature=0,  # OpenAI's default, 1, would draw a token now and then that is not the best
    )
except OpenAIError as error:
    sys.exit(f"{server} gave no answer ({error}): start it with `depcache serve depcache-tiny`")
print("answer:", reply.choices[0].message.content)
# SGLang adds `metadata` to OpenAI's reply, and DepCache its report to that.
report = (getattr(reply, "metadata", None) or {}).get("depcache")
print("reused:", report or "unknown, the server runs without DepCache")
