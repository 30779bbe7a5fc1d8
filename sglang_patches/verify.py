# SPDX-License-Identifier: Apache-2.0
"""Is every seam and hook in place? SGLang swallows a plugin's errors; this does not.

`python -m sglang_patches.verify [--json]` loads the plugins as a server would and reports.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from typing import Any

from depcache.errors import ConfigError
from sglang_patches.contract import CONTRACTS, missing_of_release
from sglang_patches.version import (
    BACKEND_NAME,
    SUPPORTED_VERSIONS,
    installed_version,
    why_version_unsupported,
)

_ENTRY_POINT_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")


@dataclass(slots=True)
class Inspection:
    """What was found in this process.

    seams     official extension point -> in place
    hooks     hooked SGLang function -> applied
    fields    SGLang class -> it has all that `sglang_patches.contract` says; only looked at by
              `inspect_server_process`
    problems  one sentence each, with what to do; empty when all is well
    """

    sglang_version: str | None
    supported_versions: list[str]
    seams: dict[str, bool] = field(default_factory=dict)
    hooks: dict[str, bool] = field(default_factory=dict)
    fields: dict[str, bool] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def inspect(hook_names: tuple[str, ...] | None = None) -> Inspection:
    """Look at this process. Loads nothing and changes nothing.

    hook_names  files of `sglang_patches.hooks` to look for; by default those of the engine
    """
    report = Inspection(installed_version(), list(SUPPORTED_VERSIONS))
    why = why_version_unsupported()
    if why is not None:
        report.problems.append(why)
    if report.sglang_version is None:
        return report
    _inspect_seams(report)
    _inspect_hooks(report, hook_names)
    return report


def _inspect_seams(report: Inspection) -> None:
    from sglang.srt.mem_cache.registry import registered_radix_cache_backends

    from sglang_patches.attention import SUPPORTED_BACKENDS, missing_backends
    from sglang_patches.plugin import registration_error

    for group in _ENTRY_POINT_GROUPS:
        found = BACKEND_NAME in {entry.name for entry in entry_points(group=group)}
        report.seams[f"entry point {group}"] = found
    report.seams["radix-cache backend"] = BACKEND_NAME in registered_radix_cache_backends()
    missing = missing_backends()
    for name in SUPPORTED_BACKENDS:
        report.seams[f"attention backend {name}"] = name not in missing
    error = registration_error()
    if error is not None:
        report.problems.append(
            f"the plugin failed to register ({type(error).__name__}: {error}): "
            "reinstall depcache-sglang"
        )
    absent = [name for name, found in report.seams.items() if not found]
    if absent:
        report.problems.append(
            f"not in place: {', '.join(absent)}; reinstall depcache-sglang in this environment, "
            f"and if SGLANG_PLUGINS or SGLANG_PLATFORM is set, let it name {BACKEND_NAME!r}"
        )


def _applied_targets() -> set[str]:
    from sglang.srt.plugins.hook_registry import HookRegistry

    # There is no public way to ask; `_is_wrapped` is the second opinion.
    return HookRegistry._patched  # pyright: ignore[reportPrivateUsage]


def _inspect_hooks(report: Inspection, hook_names: tuple[str, ...] | None) -> None:
    from sglang_patches.hooks import ENGINE_HOOKS, targets_of

    for target in targets_of(hook_names or ENGINE_HOOKS):
        report.hooks[target] = target in _applied_targets() and _is_wrapped(target)
    absent = [target for target, applied in report.hooks.items() if not applied]
    if absent:
        report.problems.append(
            f"hooks not applied: {', '.join(absent)}; another plugin may have broken them, see "
            "the log above for 'Failed to apply hooks'"
        )


def _is_wrapped(target: str) -> bool:
    """Whether the function at `target` is a wrapper; the registry's own word is not enough."""
    owner_path, name = target.rsplit(".", 1)
    module_path, class_name = owner_path.rsplit(".", 1)
    owner = getattr(importlib.import_module(module_path), class_name)
    return hasattr(getattr(owner, name), "__wrapped__")


def require_in_place() -> None:
    """Raise ConfigError unless all seams and the engine's hooks are in place in this process."""
    _require(inspect())


def require_front_in_place() -> None:
    """The same for the hooks of the tokenizer's process."""
    from sglang_patches.hooks import front_hook_names

    _require(inspect(front_hook_names()))


def _require(report: Inspection) -> None:
    if report.problems:
        raise ConfigError("DepCache is not in place: " + "; ".join(report.problems))


def inspect_server_process() -> Inspection:
    """Load everything that a server with our backend loads, then look."""
    from sglang.srt.plugins import load_plugins

    from sglang_patches.hooks import ENGINE_HOOKS, front_hook_names, install_front_hooks

    load_plugins()
    install_front_hooks()
    report = inspect(ENGINE_HOOKS + front_hook_names())
    missing = missing_of_release(installed_version())
    report.fields = {path: not any(f.startswith(f"{path}.") for f in missing) for path in CONTRACTS}
    if missing:
        report.problems.append(
            f"this SGLang lacks what DepCache uses: {', '.join(missing)}; install a supported one"
        )
    return report


def main(arguments: list[str]) -> int:
    """Print the report; 0 when all is in place, 1 when not."""
    report = inspect_server_process() if installed_version() else inspect()
    result: dict[str, Any] = asdict(report)
    if "--json" in arguments:
        print(json.dumps(result))
    else:
        for kind in ("seams", "hooks", "fields"):
            for name, found in result[kind].items():
                print(f"{'ok     ' if found else 'MISSING'} {kind[:-1]:5} {name}")
        for problem in report.problems:
            print(f"problem: {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
