# SPDX-License-Identifier: Apache-2.0
"""Is the plugin installed, once and in the same release? It is a distribution of its own.

Asked of the metadata alone: nothing of the plugin, SGLang or torch is imported.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, entry_points, version

from depcache.install_hints import server_command

ENTRY_POINT_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")
_NAME = "depcache"


def find_distributions() -> dict[str, str]:
    """Returns the distributions that bring the plugin's entry points, with their versions."""
    return {
        entry.dist.name: entry.dist.version
        for group in ENTRY_POINT_GROUPS
        for entry in entry_points(group=group, name=_NAME)
        if entry.dist is not None
    }


def find_fault() -> tuple[str, str] | None:
    """Returns what is wrong and what to do when SGLang would not load one plugin of our release."""
    groups = [group for group in ENTRY_POINT_GROUPS if not entry_points(group=group, name=_NAME)]
    if groups:
        where = " and ".join(groups)
        what = f"DepCache's plugin for SGLang is not installed: no entry point in {where}"
        return what, server_command()
    found = find_distributions()
    if len(found) > 1:
        # They wrote into one folder, and removing either removes files of the other.
        both = " and ".join(f"{name} {release}" for name, release in sorted(found.items()))
        remove = f"pip uninstall {' '.join(sorted(found))}"
        return (
            f"DepCache's plugin is installed twice, by {both}",
            f"{remove}, then {server_command()}",
        )
    spec = importlib.util.find_spec("sglang_patches")
    if spec is None or spec.origin is None:  # gone, or a folder with nothing but __pycache__
        name = next(iter(found), "depcache-sglang")
        what = f"{name} is installed, but the files of DepCache's plugin are gone"
        return what, f"pip uninstall {name}, then {server_command()}"
    try:
        ours = version("depcache")
    except PackageNotFoundError:
        return None  # run from a checkout that nobody installed: it has no release to compare
    for name, release in found.items():
        if release != ours:
            return f"{name} {release} is not of the release of depcache {ours}", server_command()
    return None
