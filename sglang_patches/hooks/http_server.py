# SPDX-License-Identifier: Apache-2.0
"""Hook on the parsing of a request's body: dependency data that no route would read is refused.

Why: SGLang drops unknown fields of a body without a word, so a route that takes none of our data,
or takes it at another place, would answer as if all were well, with everything computed anew.
Here the body has been parsed anyway, the route is known, and an error becomes an HTTP 400 in the
envelope of its API.
Unnecessary when SGLang refuses fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from fastapi import HTTPException

from depcache.errors import PromptError
from depcache.prompt.wire import PREFIX
from sglang_patches.http.rejections import counting_rejections

# Name of SGLang's function for a route -> where the route reads dependency data. Names, because
# some of the paths can be chosen by environment variables.
READ_AT = {
    "openai_v1_chat_completions": "custom_params",
    "sagemaker_chat_completions": "custom_params",
    "openai_v1_completions": "custom_params",
    "generate_request": "sampling_params.custom_params",
    "vertex_generate": "parameters.sampling_params.custom_params",
}
# Objects of a body in which clients put things that are not the API's own.
_HOLDERS = (
    *("custom_params", "sampling_params", "parameters", "instances"),
    *("extra_body", "metadata", "options"),
)
_BODY = "the body itself"
_MAX_DEPTH = 4


async def refuse_unread(original: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
    """The parsed body; HTTP 400 when it holds dependency data that its route does not read."""
    body = await original(request)
    if isinstance(body, Mapping):
        try:
            with counting_rejections():
                _refuse_unread(body, request)
        except PromptError as error:
            raise HTTPException(400, str(error)) from None
    return body


def _refuse_unread(body: Mapping[str, Any], request: Any) -> None:
    found = list(find_data(body))
    endpoint = request.scope["endpoint"].__name__
    if not found or endpoint.startswith(PREFIX):  # our own routes judge for themselves
        return
    place = READ_AT.get(endpoint)
    if place is None:
        raise PromptError(
            f"{request.url.path} takes no dependency data, but depcache_ keys stand in "
            f"{found[0]}: send them to /v1/chat/completions, /v1/completions or /generate, or "
            "leave them out"
        )
    if place not in found:
        raise PromptError(
            f"{request.url.path} does not read depcache_ keys in {found[0]}: send them in {place}"
        )


def find_data(value: Any, place: str = "", depth: int = 0) -> Iterator[str]:
    """Dotted names of the objects of a body that hold keys of ours; lists are looked through."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                yield from find_data(item, place, depth)
    elif isinstance(value, Mapping):
        if any(key.startswith(PREFIX) for key in value):
            yield place or _BODY
        if depth < _MAX_DEPTH:
            for name in _HOLDERS:
                inner = f"{place}.{name}" if place else name
                yield from find_data(value.get(name), inner, depth + 1)


HOOKS = {"sglang.srt.entrypoints.http_server.ORJSONRequest.json": ("AROUND", refuse_unread)}
