# SPDX-License-Identifier: Apache-2.0
"""The arguments of the installed SGLang's servers."""

from __future__ import annotations

import inspect
from typing import Any


def server_arguments() -> set[str]:
    """Returns the names of ServerArgs' fields, a dataclass in 0.5.17 and none in 0.5.23."""
    from sglang.srt.server_args import ServerArgs

    return {name for cls in ServerArgs.__mro__ for name in inspect.get_annotations(cls)}


def change(server_args: Any, **values: Any) -> None:
    """Change arguments that are settled; 0.5.23 has no way of its own to do so."""
    import msgspec

    for name, value in values.items():
        if hasattr(server_args, "override"):
            server_args.override("test", **{name: value})
        else:
            msgspec.structs.force_setattr(server_args, name, value)
