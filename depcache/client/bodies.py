# SPDX-License-Identifier: Apache-2.0
"""The bodies of requests about a prompt, and of `/generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from depcache.prompt.render import RenderedPrompt

if TYPE_CHECKING:
    from depcache.prompt.dep_prompt import DepPrompt


def body_of(request: RenderedPrompt | DepPrompt | Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of a question about a prompt."""
    if isinstance(request, RenderedPrompt):
        return {"messages": request.messages, **request.extra_body}
    return request if isinstance(request, Mapping) else generate_body(request)


def generate_body(prompt: DepPrompt | str | Sequence[int]) -> dict[str, Any]:
    """A body of `/generate` without sampling settings of its own."""
    if isinstance(prompt, str):
        return {"text": prompt}
    # A DepPrompt is told by its method: importing the class would bring numpy and pydantic.
    to_wire = getattr(prompt, "to_wire", None)
    if to_wire is None:
        return {"input_ids": list(cast("Sequence[int]", prompt))}
    input_ids, custom_params = to_wire()
    return {"input_ids": input_ids, "sampling_params": {"custom_params": custom_params}}
