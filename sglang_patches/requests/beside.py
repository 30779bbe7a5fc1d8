# SPDX-License-Identifier: Apache-2.0
"""Requests that the server makes itself beside a client's, for the same tenant and adapter."""

from __future__ import annotations

from typing import Any

_OF_THE_CLIENT = ("extra_key", "lora_path", "lora_id", "priority", "routed_dp_rank")


def make_beside(
    obj: Any, name: str, input_ids: list[int], sampling_params: dict[str, Any], **fields: Any
) -> Any:
    """Returns a GenerateReqInput that goes where `obj` goes.

    obj     the client's GenerateReqInput
    name    goes behind its id
    fields  further ones of the new request
    """
    request = type(obj)(
        input_ids=input_ids,
        sampling_params=sampling_params,
        rid=f"{obj.rid}/{name}",
        stream=False,
        **fields,
    )
    for field in _OF_THE_CLIENT:
        if hasattr(obj, field):
            setattr(request, field, getattr(obj, field))
    return request
