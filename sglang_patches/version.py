# SPDX-License-Identifier: Apache-2.0
"""The SGLang releases this package was tried with. What depends on the release is named here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED_VERSIONS = ("0.5.17", "0.5.23")
BACKEND_NAME = "depcache"


def installed_version() -> str | None:
    """The installed SGLang release, None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def why_version_unsupported() -> str | None:
    """One sentence when the installed release is not supported, None when it is."""
    installed = installed_version()
    if installed in SUPPORTED_VERSIONS:
        return None
    supported = ", ".join(SUPPORTED_VERSIONS)
    return (
        f"DepCache supports sglang {supported}, but sglang {installed or '(none)'} is installed: "
        f"pip install 'sglang=={SUPPORTED_VERSIONS[-1]}'"
    )
