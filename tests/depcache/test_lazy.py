# SPDX-License-Identifier: Apache-2.0
"""Names come when they are used, and a wrong one is an AttributeError."""

from __future__ import annotations

from types import ModuleType

import pytest

import depcache
import depcache.client
import depcache.tables


@pytest.mark.parametrize("package", [depcache, depcache.client, depcache.tables])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, name) for name in package.__all__)


def test_a_wrong_name_is_an_attribute_error() -> None:
    name = "rendr"
    with pytest.raises(AttributeError, match="module 'depcache' has no attribute 'rendr'"):
        getattr(depcache, name)
