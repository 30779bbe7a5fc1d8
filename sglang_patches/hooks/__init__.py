# SPDX-License-Identifier: Apache-2.0
"""Hooks into SGLang: one file per hooked target, saying why and what would remove it.

Every file has `TARGET -> hook` pairs in a table `HOOKS`. Hooks of the scheduler process are
registered when the plugin loads; those of the process that holds the tokenizer are registered
when that process checks its arguments, and only if the server uses our backend.
"""

from __future__ import annotations

import importlib
import sys

# Applied in every process, before the server's arguments are known; inert without our cache.
ENGINE_HOOKS = (
    "cpu_ranks",
    "server_args",
    "forward_batch",
    "lora_manager",
    "schedule_policy",
    "scheduler_abort",
    "scheduler_disk",
    "scheduler_ranks",
    "scheduler_state",
    "weight_updates",
)
# Applied in the tokenizer's process of a server with our backend.
FRONT_HOOKS = ("tokenizer_manager",)
# The same, if that process serves HTTP.
HTTP_HOOKS = ("http_server", "serving_base", "serving_chat", "serving_completions")


def register_hooks() -> None:
    """Register the engine's hooks. SGLang applies them after all plugins have run."""
    _register(ENGINE_HOOKS)


def install_front_hooks() -> None:
    """Register and apply the hooks of the tokenizer's process. Safe to call twice."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    _register(front_hook_names())
    HookRegistry.apply_hooks()


def front_hook_names() -> tuple[str, ...]:
    """The front hooks that belong into this process."""
    serves_http = "sglang.srt.entrypoints.http_server" in sys.modules
    return FRONT_HOOKS + HTTP_HOOKS if serves_http else FRONT_HOOKS


def targets_of(names: tuple[str, ...]) -> list[str]:
    """Dotted paths of the SGLang functions that the named files hook."""
    return [target for name in names for target in _load(name).HOOKS]


def _register(names: tuple[str, ...]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name in names:
        for target, (hook_type, hook) in _load(name).HOOKS.items():
            known = [registered for _, registered, _ in HookRegistry._hooks.get(target, [])]  # pyright: ignore
            if hook not in known:
                HookRegistry.register(target, hook, HookType[hook_type])


def _load(name: str):  # noqa: ANN202  (a module with a table HOOKS)
    return importlib.import_module(f"{__name__}.{name}")
