# SPDX-License-Identifier: Apache-2.0
"""Backends of SGLang's factory take one value of any length under one key, and give it back."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depcache.errors import ConfigError
from sglang_patches.tiers.disk.folder import NotAFileError
from sglang_patches.tiers.disk.storage import (
    BrokenStorage,
    PointerStorage,
    Storage,
    TensorStorage,
    WrongLengthError,
    check_backend,
    open_storage,
)

pytestmark = pytest.mark.sglang

RNG = np.random.default_rng(0)


def random_value(num_bytes: int) -> np.ndarray:
    return RNG.integers(0, 256, num_bytes, dtype=np.uint8)


class Addressed:
    """A backend that copies from and to addresses, as Mooncake does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.registered: list[int] = []

    def register_buffer(self, buffer: torch.Tensor) -> None:
        self.registered.append(buffer.data_ptr())

    def set(self, key: str, value: Any, location: int, num_bytes: int) -> bool:
        assert value is None and location in self.registered
        self.values[key] = bytes(_memory(location, num_bytes))
        return True

    def get(self, key: str, location: int, num_bytes: int) -> bool:
        assert location in self.registered
        if key not in self.values:
            return False
        _memory(location, num_bytes)[:] = np.frombuffer(self.values[key], np.uint8)
        return True


def _memory(location: int, num_bytes: int) -> np.ndarray:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(location))


class Copying:
    """A backend that answers with a tensor of its own, of another dtype and shape."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}

    def set(self, key: str, value: torch.Tensor) -> bool:
        self.values[key] = value.clone()
        return True

    def get(self, key: str, target: torch.Tensor) -> torch.Tensor | None:
        found = self.values.get(key)
        return None if found is None else found.view(torch.int16).reshape(2, -1).clone()


@pytest.fixture(params=["file", "copying", "addressed"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "file":
        return open_storage("file", {}, tmp_path)
    backend: Any = Copying() if request.param == "copying" else Addressed()
    return TensorStorage(backend) if request.param == "copying" else PointerStorage(backend)


def test_a_value_of_any_length_comes_back_and_others_are_missing(storage: Storage) -> None:
    values = {f"{number:040x}": random_value(4 * 10**number) for number in range(5)}
    for key, value in values.items():
        assert storage.put(key, value)
    for key, value in values.items():
        out = np.zeros_like(value)
        assert storage.get(key, out)
        assert (out == value).all()
    assert not storage.get("f" * 40, np.zeros(4, np.uint8))


def test_threads_do_not_share_what_they_stage(storage: Storage) -> None:
    values = {f"{number:040x}": random_value(40_000) for number in range(8)}
    wrong: list[str] = []

    def work(key: str, value: np.ndarray) -> None:
        for _ in range(20):
            storage.put(key, value)
            out = np.zeros_like(value)
            if not storage.get(key, out) or (out != value).any():
                wrong.append(key)

    threads = [threading.Thread(target=work, args=item) for item in values.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_value_that_the_staging_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointerStorage, "STAGING_BYTES", 100)
    backend: Any = Addressed()
    storage = PointerStorage(backend)
    assert storage.put("a", random_value(100))
    assert not storage.put("b", random_value(101))
    assert not storage.get("a", np.zeros(101, np.uint8))
    assert storage.sizes() is None


def test_a_value_of_another_length_is_an_error(tmp_path: Path) -> None:
    copying: Any = Copying()
    for storage in (open_storage("file", {}, tmp_path), TensorStorage(copying)):
        storage.put("a" * 40, random_value(8))
        for num_bytes in (4, 12):
            with pytest.raises(WrongLengthError):
                storage.get("a" * 40, np.zeros(num_bytes, np.uint8))


# -- files ----------------------------------------------------------------------------------------


def file_of(folder: Path, key: str) -> Path:
    [path] = folder.glob(f"{key}*.bin")
    return path


def test_files_are_their_owners_and_are_listed_with_size_and_age(tmp_path: Path) -> None:
    storage = open_storage("file", {}, tmp_path)
    storage.put("a" * 40, random_value(8))
    path = file_of(tmp_path, "a" * 40)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.utime(path, (time.time() - 500,) * 2)
    path.chmod(0o644)
    [(key, (num_bytes, age_s))] = (storage.sizes() or {}).items()
    assert (key, num_bytes) == ("a" * 40, 8)
    assert 499 < age_s < 10_000
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_storing_again_makes_a_value_young_and_deleting_it_twice_is_harmless(
    tmp_path: Path,
) -> None:
    storage = open_storage("file", {}, tmp_path)
    value = random_value(8)
    storage.put("a" * 40, value)
    os.utime(file_of(tmp_path, "a" * 40), (time.time() - 500,) * 2)
    storage.put("a" * 40, value)
    assert (storage.sizes() or {})["a" * 40][1] < 400
    storage.delete("a" * 40)
    storage.delete("a" * 40)
    assert storage.sizes() == {}
    assert not storage.get("a" * 40, np.zeros(8, np.uint8))


def test_a_file_of_another_length_is_replaced(tmp_path: Path) -> None:
    storage = open_storage("file", {}, tmp_path)
    storage.put("a" * 40, random_value(8))
    file_of(tmp_path, "a" * 40).write_bytes(b"cut")
    value, out = random_value(8), np.zeros(8, np.uint8)
    storage.put("a" * 40, value)
    assert storage.get("a" * 40, out)
    assert (out == value).all()


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_what_has_the_name_of_a_value_and_is_no_file_is_not_read(kind: str, tmp_path: Path) -> None:
    storage = open_storage("file", {}, tmp_path)
    storage.put("a" * 40, random_value(8))
    path = file_of(tmp_path, "a" * 40)
    path.rename(tmp_path / "elsewhere")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("elsewhere")
    with pytest.raises((NotAFileError, WrongLengthError)):
        storage.get("a" * 40, np.zeros(8, np.uint8))
    assert (storage.sizes() or {})["a" * 40][0] == -1


def test_what_a_dead_writer_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    open_storage("file", {}, tmp_path)
    old, young = (tmp_path / f"{name}.bin.tmp.1.2.3" for name in ("old", "young"))
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    open_storage("file", {}, tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


# -- which backends -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "config", "why"),
    [
        ("nixl", {}, "stores pages of one length only"),
        ("cloud", {}, "'cloud' is not known: use one of file"),
        ("dynamic", {}, "needs module_path and class_name"),
        ("dynamic", {"module_path": "a"}, "needs class_name in disk_config"),
    ],
)
def test_a_backend_that_can_never_work_is_refused(
    backend: str, config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    for check in (check_backend, lambda *args: open_storage(*args, tmp_path)):
        with pytest.raises(ConfigError, match=why):
            check(backend, config)


def test_a_broken_storage_fails_every_call_with_the_reason() -> None:
    storage = BrokenStorage(PermissionError("not yours"))
    value = random_value(1)
    for call in (
        lambda: storage.put("a", value),
        lambda: storage.get("a", value),
        lambda: storage.delete("a"),
    ):
        with pytest.raises(OSError, match="could not be opened: not yours"):
            call()
    assert storage.sizes() is None
