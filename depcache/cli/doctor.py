# SPDX-License-Identifier: Apache-2.0
"""What is installed and in place on this machine, and what to do where it is not."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import httpx

from depcache.client.address import read_address
from depcache.client.client import Client
from depcache.config import load_config
from depcache.errors import ConfigError, DepCacheError, PromptError, ServerError, shorten
from depcache.gpu_checks import why_unchecked
from depcache.install_hints import install_command, server_command
from depcache.serving.launch import find_gpu
from depcache.serving.plugin import ENTRY_POINT_GROUPS, find_distributions, find_fault

State = Literal["ok", "note", "problem"]

MIN_PYTHON = (3, 12)
SERVER_PACKAGES = ("sglang", "torch", "transformers")
CLIENT_PACKAGES = (
    *("depcache", "cachetools", "httpx", "networkx", "numpy", "pydantic", "pydantic-settings"),
    *("pyyaml", "rich", "typer"),
)
NOT_READ = "a chat with dependency data is answered without a report: custom_params get lost"
PROXY_ADVICE = "use a proxy or router that passes custom_params on, such as SMG"
VERIFY_TIMEOUT_S = 300.0  # a first import of SGLang on a cold disk

INSTALL_CLIENT = install_command()
INSTALL_SERVER = server_command()


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `advice` says what to do and is empty when all is well."""

    name: str
    state: State
    detail: str
    advice: str = ""


def run_checks(
    server_url: str | None = None,
    api_key: str | None = None,
    *,
    is_client: bool = False,
    is_quick: bool = False,
) -> list[Check]:
    """All checks in order. With `server_url`, SGLang need not be installed here as well.

    is_client  leave out what only a machine that serves needs
    is_quick   leave out what can only be known by importing SGLang
    """
    packages = [_check_package(name, "problem", INSTALL_CLIENT) for name in CLIENT_PACKAGES]
    if is_client:
        checks = [_check_python(), *packages]
    else:
        checks = [_check_python(), _check_platform(), _check_device(), *_check_gpu(), *packages]
        checks += _check_server_side(server_url, is_quick)
    if server_url:
        checks += check_server(server_url, api_key)
    return checks


def _check_server_side(server_url: str | None, is_quick: bool) -> list[Check]:
    """What a server needs on its own machine."""
    missing: State = "note" if server_url else "problem"
    has_server = installed_version("sglang") is not None
    advice = f"{INSTALL_SERVER} (needed where the server runs)"
    checks = [_check_package(name, missing, advice) for name in SERVER_PACKAGES]
    if has_server:
        plugin = _check_plugin()
        checks.append(plugin)
        # A running server says what is in place in it.
        if plugin.state == "ok" and not (is_quick or server_url):
            checks += check_seams(inspect_plugin())
    return [*checks, _check_config()]


def is_healthy(checks: list[Check]) -> bool:
    """Whether nothing is wrong; notes are no problems."""
    return all(check.state != "problem" for check in checks)


def to_json(checks: list[Check]) -> dict[str, Any]:
    """The report for programs."""
    return {"ok": is_healthy(checks), "checks": [asdict(check) for check in checks]}


def inspect_plugin(
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> dict[str, Any] | str:
    """What `python -m sglang_patches.verify --json` says; a sentence when it says nothing.

    In a process of its own: the plugin changes SGLang where it is loaded, and importing
    SGLang and torch takes seconds that other commands should not pay.
    """
    command = [sys.executable, "-m", "sglang_patches.verify", "--json"]
    try:
        done = run(command, capture_output=True, text=True, timeout=VERIFY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command[1:])} did not run ({error})"
    # SGLang and what it loads may print before it.
    for line in reversed(done.stdout.splitlines()):
        try:
            report = json.loads(line) if line.startswith("{") else None
        except ValueError:
            continue
        if isinstance(report, dict):
            return report
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"the check of the plugin failed: {shorten(lines[-1]) if lines else 'no output'}"


def check_seams(report: Mapping[str, Any] | str) -> list[Check]:
    """Seams, hooks and SGLang's version, from the report of `inspect_plugin`."""
    advice = f"{INSTALL_SERVER}, then run this again"
    if isinstance(report, str):
        return [Check("plugin", "problem", report, advice)]
    checks = []
    for kind in ("seams", "hooks"):
        found = report.get(kind) or {}
        absent = [name for name, in_place in found.items() if not in_place]
        if absent or not found:
            detail = f"missing: {', '.join(absent)}" if absent else "none reported"
            checks.append(Check(kind, "problem", detail, advice))
        else:
            names = (name.removeprefix("sglang.srt.") for name in found)
            checks.append(Check(kind, "ok", f"{len(found)} in place: {', '.join(names)}"))
    checks += [
        Check("plugin", "problem", str(problem), advice) for problem in report.get("problems") or []
    ]
    return checks


def check_server(url: str, api_key: str | None = None) -> list[Check]:
    """A running server, by its status route, and whether dependency data gets through to it.

    A router that has no such route stands for the servers behind it.
    """
    try:
        with httpx.Client(timeout=30.0) as http:
            client = Client(url, api_key, http_client=http)
            try:
                status = client.status()
            except ServerError as error:
                if error.status not in (404, 405):
                    raise
                return [_check_behind(url, api_key, http)]
            check = _check_status(url, status)
            return [check, *_check_way(url, api_key, http)] if check.state == "ok" else [check]
    except DepCacheError as error:
        return [Check("server", "problem", str(error), "start it with `depcache serve MODEL`")]


def _check_way(url: str, api_key: str | None, http: httpx.Client) -> list[Check]:
    """Whether dependency data gets through to a server that is well; nothing where it does."""
    try:
        if _reads_context(url, api_key, http):
            return []
    except PromptError as error:  # a model without a chat template, for one
        return [Check("proxy", "note", f"{url}: a chat with one fact was not answered: {error}")]
    return [Check("proxy", "problem", f"{url}: {NOT_READ}", PROXY_ADVICE)]


def _check_behind(url: str, api_key: str | None, http: httpx.Client) -> Check:
    """What answers chats at an address without DepCache's routes."""
    if _reads_context(url, api_key, http):
        detail = f"{url} has no routes under /depcache, and what is behind it reads dependency data"
        return Check("server", "ok", f"{detail}: a router before servers with DepCache")
    detail = f"{url} has no routes under /depcache, and {NOT_READ}"
    return Check("server", "problem", detail, f"start it with `depcache serve`, or {PROXY_ADVICE}")


def _reads_context(url: str, api_key: str | None, http: httpx.Client) -> bool:
    """Whether a chat with one fact comes back with a report. One token is computed for it."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        # A router knows its servers by the names of their models.
        served = http.get(f"{read_address(url)}/v1/models", headers=headers).json()["data"]
        model = str(served[0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        model = "default"
    client = Client(url, api_key, model=model, http_client=http)
    return client.ask([("a", "b", "c")], "?", max_tokens=1).depcache is not None


def _check_status(url: str, status: Mapping[str, Any]) -> Check:
    missing = [
        name
        for kind in ("seams", "hooks")
        for name, in_place in (status.get(kind) or {}).items()
        if not in_place
    ]
    if missing:
        detail = f"{url} misses {', '.join(missing)}"
        return Check("server", "problem", detail, "see the first lines of the server's log")
    if not status.get("active"):
        advice = "start it with `depcache serve`, without --stock"
        return Check("server", "problem", f"{url} runs without DepCache's cache", advice)
    detail = (
        f"{url}: depcache {status.get('version')} in sglang {status.get('sglang_version')}, "
        f"attention {status.get('attention_backend')} / {status.get('attention_plan')}"
    )
    return Check("server", "ok", detail)


def _check_python() -> Check:
    found = platform.python_version()
    if sys.version_info[:2] < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        return Check("python", "problem", found, f"use Python {wanted} or newer")
    return Check("python", "ok", f"{found} ({sys.executable})")


def _check_platform() -> Check:
    detail = platform.platform()
    if sys.platform != "linux":
        return Check("platform", "note", detail, "the server runs on Linux only; clients anywhere")
    return Check("platform", "ok", detail)


def _check_device() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not find_gpu():
        return Check("device", "ok", f"CPU with {cores} cores: fine for small models and tests")
    return Check("device", "ok", _gpu_names() or f"GPU, and a CPU with {cores} cores")


def _check_gpu() -> list[Check]:
    why = why_unchecked() if find_gpu() else None
    advice = "run the checks there in their order, and write down what came out"
    return [] if why is None else [Check("gpu", "note", why, advice)]


def _gpu_names() -> str | None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return "; ".join(done.stdout.split("\n")).strip("; ") or None


def installed_version(package: str) -> str | None:
    """Version of an installed package; None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_package(name: str, if_missing: State, advice: str) -> Check:
    found = installed_version(name)
    if found is None:
        return Check(name, if_missing, "not installed", advice)
    return Check(name, "ok", found)


def _check_plugin() -> Check:
    fault = find_fault()
    if fault is not None:
        return Check("plugin", "problem", *fault)
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed and "depcache" not in [name.strip() for name in allowed.split(",")]:
        detail = f"SGLANG_PLUGINS={allowed!r} leaves depcache out"
        return Check("plugin", "problem", detail, "add depcache to SGLANG_PLUGINS")
    found = " and ".join(f"{name} {release}" for name, release in find_distributions().items())
    return Check("plugin", "ok", f"{found}, in {', '.join(ENTRY_POINT_GROUPS)}")


def _check_config() -> Check:
    try:
        config = load_config()
    except ConfigError as error:
        return Check("settings", "problem", str(error), "correct it, or unset the variable")
    shown = ", ".join(f"{name}={value}" for name, value in config.model_dump().items())
    return Check("settings", "ok", shown)
