# SPDX-License-Identifier: Apache-2.0
"""Real storage backends that fail on command, found by SGLang's factory through `dynamic`.

What a backend does is set in `BEHAVIOUR` by its name, because the factory makes the object.
"""

from __future__ import annotations

import errno
import threading
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from sglang_patches.tiers.disk.storage import NodeFiles
from tests.helpers.ends import SLOWEST_S


class Behaviour:
    """`fails` raise ENOSPC, `hangs` wait for `release`; with `refuses` a set answers False."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.hangs: set[str] = set()
        self.refuses = False
        self.release = threading.Event()
        self.calls: list[str] = []

    def act(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.hangs:
            assert self.release.wait(SLOWEST_S)
        if verb in self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")


BEHAVIOUR: dict[str, Behaviour] = {}


class Moody(NodeFiles):
    """SGLang's file backend, except when it is told to misbehave."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        assert storage_config.extra_config is not None
        self.mood = BEHAVIOUR[storage_config.extra_config["mood"]]
        self.mood.act("open")
        super().__init__(storage_config, kwargs)

    def set(self, key: str, value: Any = None, *_: Any, **__: Any) -> bool:
        self.mood.act("set")
        return not self.mood.refuses and super().set(key, value)

    def get(self, key: str, target_location: torch.Tensor, *_: Any) -> torch.Tensor | None:
        self.mood.act("get")
        return super().get(key, target_location)

    def delete(self, key: str) -> None:
        self.mood.act("delete")
        super().delete(key)


class Hanging(NodeFiles):
    """SGLang's file backend in another process: the verbs named in its config hang or fail."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        assert storage_config.extra_config is not None
        self.mood = Behaviour()
        self.mood.hangs = set(storage_config.extra_config.get("hangs", ()))
        self.mood.fails = set(storage_config.extra_config.get("fails", ()))
        super().__init__(storage_config, kwargs)

    def set(self, key: str, value: Any = None, *_: Any, **__: Any) -> bool:
        self.mood.act("set")
        return super().set(key, value)

    def get(self, key: str, target_location: torch.Tensor, *_: Any) -> torch.Tensor | None:
        self.mood.act("get")
        return super().get(key, target_location)
