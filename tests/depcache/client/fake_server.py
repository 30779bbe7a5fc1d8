# SPDX-License-Identifier: Apache-2.0
"""A server in memory that answers like SGLang with DepCache, and remembers what it was asked."""

import json

import httpx

from tests.helpers.rendered import paths_of

REPORT = {
    "layout": "tree",
    "prompt_tokens": 30,
    "context_tokens": 20,
    "shared": 12,
    "shifted": 1,
    "loaded": 2,
    "missed": 5,
    "plain": 10,
    "fallback_reason": None,
    "retractions": 0,
}
USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 2,
    "total_tokens": 32,
    "prompt_tokens_details": {"cached_tokens": 15},
}
HEAD = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def named_paths(body):
    """The paths that a request names in its `custom_params`."""
    return paths_of(body)


def sse(*documents, done=True):
    """Server-sent events of these documents."""
    lines = [f"data: {json.dumps(document)}\n\n" for document in documents]
    return "".join([*lines, "data: [DONE]\n\n"] if done else lines).encode()


def chat_chunks(with_report=True):
    def choice(delta, reason=None):
        return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    return [
        choice({"role": "assistant", "content": ""}),
        choice({"content": "War"}),
        choice({"content": "saw"}),
        choice({}, "stop"),
        # A prompt without dependency data gets no report.
        {**HEAD, "choices": [], "usage": USAGE}
        | ({"metadata": {"depcache": REPORT}} if with_report else {}),
    ]


class FakeServer:
    """An `httpx.MockTransport`; `requests` holds (path, parsed body) in order."""

    def __init__(self):
        self.requests = []
        self.headers = []
        self.raw = []
        self.transport = httpx.MockTransport(self.answer)

    @property
    def body(self):
        return self.requests[-1][1]

    def answer(self, request):
        self.raw.append(request.content)
        self.headers.append(request.headers)
        body = json.loads(request.content) if request.content else {}
        path = request.url.path
        self.requests.append((path, body))
        if path == "/v1/chat/completions":
            if body.get("stream"):
                return self._stream(*chat_chunks())
            message = {"role": "assistant", "content": "Warsaw"}
            return httpx.Response(
                200,
                json={
                    "id": "1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "m",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": USAGE,
                    "metadata": {"depcache": REPORT},
                },
            )
        if path == "/generate":
            info = {
                "id": "1",
                "prompt_tokens": 30,
                "completion_tokens": 2,
                "cached_tokens": 15,
                "finish_reason": {"type": "length", "length": 2},
                "depcache": REPORT,
            }
            if body.get("stream"):
                texts = ["War", "Warsaw"]
                return self._stream(
                    *({"text": text, "output_ids": [1, 2], "meta_info": info} for text in texts)
                )
            return httpx.Response(
                200, json={"text": "Warsaw", "output_ids": [1, 2], "meta_info": info}
            )
        if path == "/v1/tokenize":
            return httpx.Response(200, json={"count": 7, "tokens": [0] * 7, "max_model_len": 9})
        if path == "/depcache/explain":
            return httpx.Response(200, json={**REPORT, "table": []})
        if path == "/health":
            return httpx.Response(200)
        return httpx.Response(404, json={"detail": "Not Found"})

    def _stream(self, *documents):
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=sse(*documents))
