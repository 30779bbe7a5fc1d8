# SPDX-License-Identifier: Apache-2.0
"""What the server's own requests say to the scheduler, beyond the wire.

In the HTTP process these are attributes of a request. Behind all checks they become keys of
`custom_params`; what a client sends under these names is refused, as they are no keys of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_patches.requests.masses import MASSES, OVERHEADS
from sglang_patches.requests.roots import ROOTS
from sglang_patches.requests.scoring import SCORING

STORING = "depcache_storing"
"""True: the last row is computed behind the others of the request, and stored as such."""

SEEING_ROWS = "depcache_seeing_rows"
"""How many rows say what they see, each a segment of its own: the report counts those cached."""

KEYS = (SCORING, STORING, SEEING_ROWS, MASSES, OVERHEADS, ROOTS)


def pass_on(obj: Any) -> None:
    """Writes such attributes of a request, if it has any, into its parameters.

    obj  SGLang's GenerateReqInput, about to leave for the scheduler
    """
    told = {key: getattr(obj, key) for key in KEYS if getattr(obj, key, None) is not None}
    if told:
        params = {**obj.sampling_params["custom_params"], **told}
        obj.sampling_params = {**obj.sampling_params, "custom_params": params}


def take_inner(custom_params: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the parameters without such keys, and these."""
    if not isinstance(custom_params, Mapping):
        return custom_params, {}
    inner = {key: custom_params[key] for key in KEYS if key in custom_params}
    if not inner:
        return custom_params, {}
    return {key: value for key, value in custom_params.items() if key not in inner}, inner
