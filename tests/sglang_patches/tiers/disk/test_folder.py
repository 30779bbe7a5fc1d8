# SPDX-License-Identifier: Apache-2.0
"""The folder of a disk tier is its owner's alone, and only plain files in it are opened."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from sglang_patches.tiers.disk.folder import (
    NotAFileError,
    Skipped,
    make_private,
    open_plain,
    opened_alone,
    try_lock,
    write_private,
)
from tests.helpers.ends import SLOWEST_S

pytestmark = pytest.mark.sglang


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_with_those_above_it_for_its_owner_only(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == mode_of(tmp_path / "a") == 0o700


def test_a_folder_that_is_there_is_closed_and_what_is_above_stays_open(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o755)
    folder.chmod(0o775)
    make_private(folder)
    assert (mode_of(folder), mode_of(folder.parent)) == (0o700, 0o755)


def test_a_file_is_written_whole_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "about.json"
    path.write_bytes(b"a longer text that was there before")
    write_private(path, b"{}")
    assert path.read_bytes() == b"{}"
    assert mode_of(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "about.json"
    folder.mkdir()  # a file cannot replace it
    with pytest.raises(OSError):
        write_private(folder, b"{}")
    assert list(tmp_path.iterdir()) == [folder]


def make_odd(kind: str, path: Path) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (path.parent / "target").write_bytes(b"somebody else's")
        path.symlink_to("target" if kind == "link" else "nowhere")


@pytest.mark.timeout(SLOWEST_S)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR], ids=["r", "w", "rw"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "dead link"])
def test_what_is_no_plain_file_is_never_opened_or_waited_for(
    kind: str, flags: int, tmp_path: Path
) -> None:
    path = tmp_path / "odd"
    make_odd(kind, path)
    with pytest.raises(NotAFileError, match="not a plain file"):
        open_plain(path, flags)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "nothing")


def test_a_lock_is_free_again_when_its_holder_closes_the_file(tmp_path: Path) -> None:
    first, second = (open_plain(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_who_opens_a_folder_waits_for_the_other_and_not_for_ever(tmp_path: Path) -> None:
    entered = threading.Event()

    def enter() -> None:
        with opened_alone(tmp_path):
            entered.set()

    with opened_alone(tmp_path):
        with pytest.raises(OSError, match=r"opening it for 0\.05 s"), opened_alone(tmp_path, 0.05):
            pass
        thread = threading.Thread(target=enter, daemon=True)
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(SLOWEST_S)
    thread.join(SLOWEST_S)


def test_each_entry_that_is_skipped_counts_once_and_only_the_first_is_said_aloud(
    caplog: pytest.LogCaptureFixture,
) -> None:
    skipped = Skipped()
    with caplog.at_level(logging.DEBUG, logger="depcache"):
        for name in ("a", "b", "a", "c"):
            skipped.note(Path("/folder") / name, "not a plain file")
    assert len(skipped) == 3
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert "/folder/a is skipped (not a plain file)" in caplog.records[0].getMessage()
