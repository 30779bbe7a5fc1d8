# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCacheStorage as the disk tier uses it: one value of any length under one key.

SGLang's own controller stores fixed pages along one linear chain of hashes. A forest needs a
value per node, so only backends that take values of any length serve: `file`, `dynamic` (a
class of the user's own) and those that are given an address (`mooncake`, `simm`, `mori`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from depcache.errors import ConfigError, shorten
from sglang_patches.tiers.disk.folder import NotAFileError, open_plain, tighten

UNTRIED_BACKENDS = ("simm", "mori")
POINTER_BACKENDS = ("mooncake", *UNTRIED_BACKENDS)
BACKENDS = ("file", "dynamic", *POINTER_BACKENDS)
_FIXED_PAGES = ("nixl", "hf3fs", "aibrix", "eic", "shm")
_FOLDER = "depcache_folder"
# A temporary file this old belongs to nobody: its writer died between write and rename.
_STALE_S = 3600.0
# What opening or reading something else than a plain file says, where it would not block.
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EAGAIN)


class WrongLengthError(OSError):
    """A stored value is not as long as it was when it was stored."""


class Storage(Protocol):
    """What the disk tier asks of a backend. Every call may raise, and may block."""

    def put(self, key: str, value: np.ndarray) -> bool:
        """Store uint8 bytes; False when the backend refuses."""
        ...

    def get(self, key: str, out: np.ndarray) -> bool:
        """Fill `out`; False when there is no such value."""
        ...

    def delete(self, key: str) -> None:
        """Remove a value, or nothing where there is none or the backend cannot."""
        ...

    def sizes(self) -> dict[str, tuple[int, float]] | None:
        """Key -> (bytes, age in seconds) of all that is there; None where it cannot be listed.

        -1 bytes stand for what has the name of a value and is no plain file.
        """
        ...


class NodeFiles(HiCacheFile):
    """SGLang's file backend (write beside, then rename), with what a forest needs more.

    Files are readable by their owner only, and nothing but plain files is read or waited for.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, _: Any = None) -> None:
        assert storage_config.extra_config is not None
        folder = storage_config.extra_config[_FOLDER]
        # The variable would win over the argument, for every tier of the process.
        with envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.override(folder):
            super().__init__(storage_config, folder)
        self._sweep()

    def set(
        self,
        key: str,
        value: torch.Tensor | None = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store uint8 `value`, unless a file of its length is there. Raises OSError.

        SGLang's takes whatever has the name for the value, and makes files for everyone to read.
        """
        assert value is not None
        data, path = value.numpy(), self._path_of(key)
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size == len(data):
                os.utime(path)  # a process that starts now does not take it for a crash's
                return True
        temporary = f"{path}.tmp.{os.getpid()}.{threading.get_ident()}.{uuid.uuid4().hex}"
        try:
            with open(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        return True

    def get(
        self, key: str, target_location: torch.Tensor, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """Fill `target_location`, uint8; None when missing.

        Raises NotAFileError, and WrongLengthError.
        """
        # Three system calls and not five: after each one this thread has to win the interpreter's
        # lock back from a scheduler that is busy. So nothing asks what kind of file this is; one
        # that is not plain cannot be opened or read without waiting, or ends at once.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        num_bytes = target_location.numel()
        try:
            descriptor = os.open(self._path_of(key), flags)
            try:
                num_read = _read_all(descriptor, target_location.numpy())
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise NotAFileError(f"{key} is not a plain file") from error
            raise
        if num_read != num_bytes:
            raise WrongLengthError(f"{key} does not have {num_bytes} bytes")
        return target_location

    def delete(self, key: str) -> None:
        """Remove a value; HiCacheStorage itself has no such verb."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path_of(key))
        if self.metadata_cache is not None:
            self.metadata_cache.remove(self._get_suffixed_key(key))

    def sizes(self) -> dict[str, tuple[int, float]]:
        """Key -> (bytes, seconds since it was written); -1 bytes for what is no plain file."""
        found = {}
        end = f"{self.config_suffix}.bin"
        now = time.time()
        with os.scandir(self.file_path) as files:
            for file in files:
                if not file.name.endswith(end):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    num_bytes = -1
                    if stat.S_ISREG(status.st_mode):
                        num_bytes = status.st_size
                        tighten(file.path, status)
                    found[file.name.removesuffix(end)] = (num_bytes, now - status.st_mtime)
        return found

    def _path_of(self, key: str) -> str:
        return os.path.join(self.file_path, f"{self._get_suffixed_key(key)}.bin")

    def _sweep(self) -> None:
        with os.scandir(self.file_path) as files:
            for file in files:
                if ".bin.tmp." in file.name:
                    with contextlib.suppress(OSError):
                        if time.time() - file.stat(follow_symlinks=False).st_mtime > _STALE_S:
                            os.remove(file.path)


class TensorStorage:
    """A backend that takes a tensor: `file`, and whatever `dynamic` names."""

    def __init__(self, backend: HiCacheStorage) -> None:
        self.backend = backend

    def put(self, key: str, value: np.ndarray) -> bool:
        return bool(self.backend.set(key, torch.from_numpy(value)))

    def get(self, key: str, out: np.ndarray) -> bool:
        target = torch.from_numpy(out)
        found = self.backend.get(key, target)
        if found is None or found is False:
            return False
        if isinstance(found, torch.Tensor) and found.data_ptr() != target.data_ptr():
            if found.numel() * found.element_size() != len(out):
                raise WrongLengthError(f"{key} has {found.numel()} elements")
            target.copy_(found.contiguous().view(torch.uint8).reshape(-1))
        return True

    def delete(self, key: str) -> None:
        remove = getattr(self.backend, "delete", None)
        if remove is not None:
            remove(key)

    def sizes(self) -> dict[str, tuple[int, float]] | None:
        listing = getattr(self.backend, "sizes", None)
        return None if listing is None else listing()


class PointerStorage:
    """A backend that is given an address in memory it has registered; of these Mooncake is tried.

    Each thread has one staging buffer; a value that is longer is refused.
    """

    STAGING_BYTES = 64 << 20

    def __init__(self, backend: HiCacheStorage) -> None:
        self.backend = backend
        self._local = threading.local()

    def put(self, key: str, value: np.ndarray) -> bool:
        if len(value) > self.STAGING_BYTES:
            return False
        staging = self._staging()
        staging.numpy()[: len(value)] = value
        location: Any = staging.data_ptr()
        return bool(self.backend.set(key, None, location, len(value)))

    def get(self, key: str, out: np.ndarray) -> bool:
        staging = self._staging()
        location: Any = staging.data_ptr()
        if len(out) > self.STAGING_BYTES or not self.backend.get(key, location, len(out)):
            return False
        out[:] = staging.numpy()[: len(out)]
        return True

    def delete(self, key: str) -> None:
        """Remove a value where the store has a verb for it, as Mooncake's has.

        One that it leases to a reader stays until it evicts it, as these stores do by themselves.
        """
        remove = getattr(getattr(self.backend, "store", None), "remove", None)
        if remove is not None:
            remove(key)

    def sizes(self) -> None:
        return None

    def _staging(self) -> torch.Tensor:
        buffer = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = torch.empty(self.STAGING_BYTES, dtype=torch.uint8)
            register = getattr(self.backend, "register_buffer", None)
            if register is not None:
                register(buffer)
        return buffer


class BrokenStorage:
    """Stands in for a backend that could not be opened: every call fails, no call blocks."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def put(self, key: str, value: np.ndarray) -> bool:
        raise OSError(f"the storage could not be opened: {self.error}")

    def get(self, key: str, out: np.ndarray) -> bool:
        raise OSError(f"the storage could not be opened: {self.error}")

    def delete(self, key: str) -> None:
        raise OSError(f"the storage could not be opened: {self.error}")

    def sizes(self) -> None:
        return None


def _read_all(descriptor: int, target: np.ndarray) -> int:
    """Fill `target`, uint8; bytes read, one more than it has where the file is longer."""
    view, beyond = memoryview(target), bytearray(1)
    num_read = 0
    while found := os.readv(descriptor, [view[num_read:], beyond]):
        num_read += found
        if num_read >= len(view):  # as a rule at once
            break
    return num_read


def check_backend(backend: str, config: dict[str, Any]) -> None:
    """Raise ConfigError for a name or a config that can never work."""
    if backend in _FIXED_PAGES:
        raise ConfigError(
            f"disk_backend {backend!r} stores pages of one length only, and nodes have many: "
            f"use one of {', '.join(BACKENDS)}"
        )
    if backend not in BACKENDS:
        raise ConfigError(
            f"disk_backend {shorten(backend)} is not known: use one of {', '.join(BACKENDS)}"
        )
    missing = [key for key in ("module_path", "class_name") if not config.get(key)]
    if backend == "dynamic" and missing:
        raise ConfigError(
            f"disk_backend 'dynamic' needs {' and '.join(missing)} in disk_config: "
            "name a HiCacheStorage class"
        )


def open_storage(
    backend: str,
    config: dict[str, Any],
    folder: Path,
    host_pool: Any = None,
    *,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> Storage:
    """A backend of SGLang's factory. Raises ConfigError as `check_backend`, else what it raises.

    folder     where `file` keeps its values
    host_pool  SGLang's host pool, which some backends want to see
    """
    check_backend(backend, config)
    extra = dict(config)
    name = backend
    if backend == "file":
        name = "dynamic"  # the factory makes classes by their module
        extra |= {
            "backend_name": "depcache_file",
            "module_path": NodeFiles.__module__,
            "class_name": NodeFiles.__name__,
            _FOLDER: str(folder),
            "max_size": 0,  # the tree chooses the victims
        }
    elif backend == "dynamic":
        extra.setdefault("backend_name", extra["class_name"])
    storage_config = HiCacheStorageConfig(
        tp_rank=tp_rank,
        tp_size=tp_size,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="depcache",  # a part of file names; the model itself is in the key
        extra_config=extra,
    )
    made = StorageBackendFactory.create_backend(name, storage_config, host_pool)
    return PointerStorage(made) if backend in POINTER_BACKENDS else TensorStorage(made)
