# SPDX-License-Identifier: Apache-2.0
"""Ask the scheduler: a question goes out, and its answer comes back as a dict."""

from __future__ import annotations

from typing import Any

import fastapi

from depcache.errors import PromptError
from sglang_patches.http.control import make_question


async def ask(manager: Any, question: dict[str, Any] | None) -> dict[str, Any]:
    """The scheduler's answer; of several data-parallel ranks the first one's.

    manager   SGLang's TokenizerManager
    question  see `control.answer`; None asks for the cache's state alone

    Raises PromptError for a question that is wrong, and an HTTPException for a fault of ours.
    """
    from sglang.srt.managers.io_struct import GetInternalStateReq

    manager.auto_create_handle_loop()
    rid = make_question({"ask": "state"} if question is None else question)
    replies = await manager.get_internal_state_communicator(GetInternalStateReq(rid=rid))
    state = replies[0].internal_state["depcache"]
    if "error" in state:
        raise PromptError(state["error"])
    if "fault" in state:
        raise fastapi.HTTPException(500, state["fault"])
    return state
