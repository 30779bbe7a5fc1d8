# SPDX-License-Identifier: Apache-2.0
"""A disk that is full soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.soak.small_disk import MountError, small_disk


def test_a_small_disk_is_full_soon_and_can_be_made_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    try:
        with small_disk(folder) as set_read_only:
            (folder / "a").write_bytes(b"a")
            with pytest.raises(OSError):
                (folder / "b").write_bytes(bytes(10_000_000))
            set_read_only(True)
            with pytest.raises(OSError):
                (folder / "c").write_bytes(b"c")
    except MountError as error:
        pytest.skip(f"this machine does not let us mount: {error}")
    assert not (folder / "a").exists()
