# SPDX-License-Identifier: Apache-2.0
"""What we say that SGLang has, the installed release has; what it lacks is named."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from sglang_patches.contract import CONTRACTS, Request, fields_of, missing_fields

pytestmark = pytest.mark.sglang


def test_the_installed_release_has_every_field() -> None:
    assert missing_fields() == []


def test_every_protocol_names_fields() -> None:
    assert all(fields_of(contract) for contract in CONTRACTS.values())
    found = fields_of(Request)
    assert {"rid", "extend_range", "get_fill_ids", "last_node"} <= set(found)
    assert not [name for name in found if name.startswith(("__", "_abc"))]


class Renamed(Protocol):
    """One of each kind that is there, and one of each that is not."""

    rid: str
    request_name: str

    def set_finish_with_abort(self, error_msg: str) -> None: ...
    def end_alone(self, why: str) -> None: ...

    @property
    def is_over(self) -> bool: ...


def test_what_a_release_lacks_is_named() -> None:
    path = "sglang.srt.managers.schedule_batch.Req"
    missing = [f"{path}.end_alone", f"{path}.is_over", f"{path}.request_name"]
    assert missing_fields({path: Renamed}) == missing
    gone: dict[str, Any] = {"sglang.srt.managers.schedule_batch.Request": Renamed}
    assert len(missing_fields(gone)) == 5
