# SPDX-License-Identifier: Apache-2.0
"""What we say that SGLang has, the installed release has; what it lacks is named."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from sglang_patches.contract import (
    CONTRACTS,
    RELEASES,
    Request,
    fields_of,
    missing_fields,
    missing_of_release,
)
from sglang_patches.version import SUPPORTED_VERSIONS, installed_version

pytestmark = pytest.mark.sglang


def test_the_installed_release_has_every_field() -> None:
    assert missing_fields() == []
    assert missing_of_release(installed_version()) == []


def test_each_supported_release_has_fields_that_no_other_has() -> None:
    assert tuple(RELEASES) == SUPPORTED_VERSIONS
    for release in SUPPORTED_VERSIONS:
        assert bool(missing_of_release(release)) == (release != installed_version())
    assert missing_of_release("9.9.9") == missing_of_release(SUPPORTED_VERSIONS[-1])


def test_every_protocol_names_fields() -> None:
    of_one = [contract for contracts in RELEASES.values() for contract in contracts.values()]
    assert all(fields_of(contract) for contract in (*CONTRACTS.values(), *of_one))
    found = fields_of(Request)
    assert {"rid", "output_ids", "get_fill_ids", "last_node"} <= set(found)
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
