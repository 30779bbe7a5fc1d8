# SPDX-License-Identifier: Apache-2.0
"""The prompt in the body of a question to a route under /depcache.

The body is that of a chat, a completion or /generate. It is read by SGLang's own models and
conversions and by the one reader of all routes, `inbound.prepare`, so a question means what the
request would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Any

import fastapi
import orjson
from pydantic import TypeAdapter, ValidationError

from depcache.errors import PromptError, explain_validation, shorten
from depcache.prompt.unread import find_unread, texts_of
from depcache.prompt.wire import PREFIX, WireIds, parse_wire
from sglang_patches.requests.inbound import DIFFERS, prepare
from sglang_patches.requests.params import custom_params_of, has_dependencies
from sglang_patches.requests.recognition import recognise_text
from sglang_patches.requests.tenants import sealed

MAX_BODY_BYTES = 16 * 2**20
"""Longest body of a question."""

_KEYS = ("text", "input_ids", "sampling_params", "extra_key", "lora_path")


@dataclass(frozen=True)
class AskedPrompt:
    """A dependency prompt that a route was asked about.

    question  for the scheduler
    differs   see `depcache.prompt.differs`
    """

    input_ids: list[int]
    wire: WireIds
    question: dict[str, Any]
    differs: list[str]


async def read_asked_prompt(http_server: Any, request: fastapi.Request) -> AskedPrompt:
    """The prompt in the body of `request`. Raises PromptError.

    The work is done on a thread: the event loop serves everybody.
    """
    data = await read_body(request)
    return await asyncio.to_thread(_read, http_server, data)


async def read_body(request: fastapi.Request) -> bytes:
    """The body of a question. Raises PromptError, before it is read, where it is too long."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise PromptError(
                f"the body is longer than the {MAX_BODY_BYTES} bytes allowed: send less"
            )
    return bytes(data)


def _read(http_server: Any, data: bytes) -> AskedPrompt:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise PromptError(f"the body is not JSON ({error}): send a JSON object") from None
    if not isinstance(body, dict):
        raise PromptError(f"the body is {shorten(body)}: send a JSON object")
    obj = _to_internal(http_server, body)
    recognise_text(obj)
    if not has_dependencies(obj):
        sentence = "the request has no dependency data: send depcache_ keys in custom_params"
        if unread := find_unread(texts_of(body.get("messages"))):
            sentence += (
                f"; {unread[0].count} lines of it look like facts ({shorten(unread[0].example)}), "
                "and no server reads those by itself"
            )
        raise PromptError(sentence)
    manager = http_server._global_state.tokenizer_manager
    prepare(obj, manager)
    custom_params = custom_params_of(obj)
    wire = parse_wire(custom_params)
    assert isinstance(wire, WireIds)
    input_ids = list(obj.input_ids)
    question = {
        "input_ids": input_ids,
        "extra_key": sealed(obj),
        "lora_id": _lora_id_of(manager, obj.lora_path),
        "custom_params": {k: v for k, v in custom_params.items() if k.startswith(PREFIX)},
    }
    return AskedPrompt(input_ids, wire, question, getattr(obj, DIFFERS))


def _lora_id_of(manager: Any, name: str | None) -> str | None:
    """SGLang's id of an adapter; None for the model alone, which "" names too."""
    if not name:
        return None
    adapters = manager.lora_registry.get_all_adapters()
    found = adapters.get(name)
    if found is None:
        known = shorten(", ".join(sorted(adapters))) if adapters else "none"
        raise PromptError(
            f"{shorten(name)} is no adapter of this server, which has {known}: name one of these"
        )
    return found.lora_id


def _to_internal(http_server: Any, body: dict[str, Any]) -> Any:
    """SGLang's own request object for a body like /generate's, or like a chat's or completion's."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

    state = http_server.app.state
    if "messages" in body:
        return _convert(state.openai_serving_chat, ChatCompletionRequest, body)
    if "prompt" in body:
        return _convert(state.openai_serving_completion, CompletionRequest, body)
    unknown = sorted(set(body) - set(_KEYS))
    if unknown:
        raise PromptError(
            f"{shorten(unknown[0])} is no key of this route: send {', '.join(_KEYS)}, or the body "
            "of a chat or a completion"
        )
    try:
        return _generate_adapter().validate_python(body)
    except ValidationError as error:
        raise PromptError(explain_validation(error)) from None


@cache
def _generate_adapter() -> TypeAdapter[Any]:
    from sglang.srt.managers.io_struct import GenerateReqInput

    return TypeAdapter(GenerateReqInput)


def _convert(serving: Any, kind: type, body: dict[str, Any]) -> Any:
    """What SGLang's own route would make of `body`."""
    try:
        request = kind(**{"model": "", **body})
        wrong = serving._validate_request(request)
        if wrong:
            raise PromptError(wrong)
        return serving._convert_to_internal_request(request)[0]
    except ValidationError as error:
        raise PromptError(explain_validation(error)) from None
    except (ValueError, fastapi.HTTPException):
        raise
    except Exception as error:  # SGLang's own route answers HTTP 500 here
        raise PromptError(
            f"SGLang cannot read the body ({type(error).__name__}: {error}): send what its own "
            "route takes"
        ) from error
