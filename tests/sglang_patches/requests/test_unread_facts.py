# SPDX-License-Identifier: Apache-2.0
"""Facts in the system message on the real server, and what `explain` says of facts it reads not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from depcache.client import DepCacheTransport
from tests.helpers.ends import SLOWEST_S

pytestmark = pytest.mark.sglang

LINES = [
    "Sysmire -> lies on -> Linnet",
    "Sysmire -> located in -> Tarn",
    "Tarn -> capital -> Quill",
]


def ask(served: Any, system: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "m", "messages": messages, "max_tokens": 2, "temperature": 0}
    body["cache_salt"] = "unread facts"  # the server's other tests leave beginnings behind
    url = str(served.client.base_url.join("/v1/chat/completions"))
    with httpx.Client(transport=DepCacheTransport(), timeout=SLOWEST_S) as client:
        return client.post(url, json=body).json()["metadata"]["depcache"]


def test_facts_in_the_system_message_are_a_tree_and_reused_in_another_order(served) -> None:
    words = "Answer from what you know.\n\nFacts:\n"
    cold = ask(served, words + "\n".join(LINES), "Where is Sysmire?")
    warm = ask(served, words + "\n".join(reversed(LINES)), "What is the capital of Tarn?")
    # Rows stand whole, each with the line break behind it; the last row had none.
    assert cold["missed"] == cold["context_tokens"] == warm["context_tokens"]
    assert warm["missed"] == 1
    again = ask(served, words + "\n".join(reversed(LINES)), "What is on Linnet?")
    assert again["shared"] == again["context_tokens"]


def test_explain_names_what_it_did_not_read_as_facts(served) -> None:
    facts = {
        "depcache_version": 1,
        "depcache_layout": "tree",
        "depcache_template": "path",
        "depcache_paths": '[["Sysmire","lies on","Linnet"]]',
    }
    other = "['Tarn', 'capital', 'Quill']\n['Tarn', 'near', 'Oriel']"
    text = f"Facts:\nSysmire -> lies on -> Linnet\n\n{other}\nWhere is Sysmire?"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    body["custom_params"] = facts
    found = served.post("/depcache/explain", body).json()["unread_facts"]
    assert [(each["spelling"], each["count"]) for each in found] == [("['A', 'relation', 'B']", 2)]
    assert found[0]["example"] == other.partition("\n")[0]
    body["messages"][0]["content"] = text.replace(other, "")
    assert served.post("/depcache/explain", body).json()["unread_facts"] == []

    del body["custom_params"]
    body["messages"][0]["content"] = text
    refused = served.post("/depcache/explain", body)
    assert refused.status_code == 400
    assert "2 lines of it look like facts" in refused.text
