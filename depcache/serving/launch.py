# SPDX-License-Identifier: Apache-2.0
"""The command line and environment that start SGLang with DepCache: pure values, no process.

Flags that the user gave are passed on untouched; only what is not given gets a default.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from depcache.errors import ConfigError, ServerError
from depcache.install_hints import server_command
from depcache.serving.plugin import find_fault
from depcache.serving.tiny import TINY_NAME, resolve_model
from depcache.text_file import read_yaml

BACKEND_FLAG = "--radix-cache-backend"
BACKEND_NAME = "depcache"

# SGLang's own.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = "30000"

# Device files that a usable accelerator has; asking torch would take seconds.
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
_HIDE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

_ARENAS = "MALLOC_ARENA_MAX"  # glibc's

# Spellings of the flags for which there is a default.
_ALIASES = {"--model": "--model-path"}


@dataclass(frozen=True)
class Launch:
    """What to execute.

    argv  the command, its first element an executable
    env   variables to set over the present environment
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def to_shell(self) -> str:
        """One line for a POSIX shell."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*words, shlex.join(self.argv)])


def make_launch(
    sglang_args: Sequence[str],
    *,
    model: str | None = None,
    stock: bool = False,
    has_gpu: bool = False,
    settings: dict[str, str] | None = None,
) -> Launch:
    """The launch of `python -m sglang.launch_server`.

    sglang_args  flags of SGLang, passed on in order
    model        path or name, or `depcache-tiny`; None when `sglang_args` names it
    stock        leave SGLang's own prefix cache in place: the baseline to compare with. The
                 rest stays the same, the attention on a CPU too.
    has_gpu      whether there is an accelerator; `--device` in `sglang_args` overrides it
    settings     values of `depcache.config.Config` by name

    Raises ConfigError when the arguments contradict each other, or no model is named.
    """
    args = list(sglang_args)
    given = given_flags(args)
    if model is not None and "--model-path" in given:
        raise ConfigError(
            f"the model is named twice, {model!r} and {given['--model-path']!r}: name it once"
        )
    if model is None and "--model-path" not in given:
        raise ConfigError(
            "no model is named: put its path or name first, `depcache serve MODEL ...`"
        )
    backend = given.get(BACKEND_FLAG)
    if stock and backend == BACKEND_NAME:
        raise ConfigError(f"--stock and {BACKEND_FLAG} {backend} contradict each other: drop one")
    if not stock and BACKEND_FLAG in given and backend != BACKEND_NAME:
        raise ConfigError(
            f"{BACKEND_FLAG} {backend} would take DepCache's place: leave it out, or say --stock"
        )

    defaults: list[tuple[str, str | None]] = []
    if not stock:
        defaults += [(BACKEND_FLAG, BACKEND_NAME), ("--radix-eviction-policy", "lacr_adaptive")]
    defaults += [("--page-size", "1"), ("--enable-cache-report", None)]
    device = given.get("--device")
    if device == "cpu" or (device is None and not has_gpu):
        defaults += [
            ("--attention-backend", "torch_native"),
            ("--device", "cpu"),
            ("--sampling-backend", "pytorch"),
            # There is nothing to overlap with: the first token would only wait for a decode step.
            ("--disable-overlap-schedule", None),
            # With SGLang's default, xgrammar, the first request for a JSON schema ends a server
            # on a CPU ("Unsupported device"); llguidance compiles C++ when it is asked.
            ("--grammar-backend", "outlines"),
            # "auto" would serve float32 weights in float16, which no CPU is fast at.
            ("--dtype", "float32"),
            # SGLang's default would take nearly all the memory there is. Where the tokens are
            # counted out, that is the bound: other programs' memory must not stop the start.
            ("--mem-fraction-static", "0.9" if "--max-total-tokens" in given else "0.3"),
        ]
    else:
        # It comes with SGLang for NVIDIA; torch runs on all others.
        has_flashinfer = importlib.util.find_spec("flashinfer") is not None
        defaults.append(("--attention-backend", "flashinfer" if has_flashinfer else "torch_native"))
        if not stock:
            # A captured prefill would run without the trees; stock SGLang keeps its graphs.
            defaults.append(("--disable-prefill-cuda-graph", None))
    argv = [sys.executable, "-m", "sglang.launch_server"]
    if model is not None:
        argv += ["--model-path", resolve_model(model)]
        if model == TINY_NAME and "--served-model-name" not in given:
            argv += ["--served-model-name", model]
    for flag, value in defaults:
        if flag not in given:
            argv += [flag] if value is None else [flag, value]
    env = {f"DEPCACHE_{name.upper()}": value for name, value in (settings or {}).items()}
    if not stock and _ARENAS not in os.environ:
        # Else each thread that reads prompts keeps memory of its own, as much as its largest took.
        env[_ARENAS] = "2"
    return Launch([*argv, *args], env)


def given_flags(args: Sequence[str]) -> dict[str, str | None]:
    """Flags in an SGLang command line and in the file its `--config` names, with their values.

    Names are `--with-dashes`; a flag without a value has None.
    """
    flags: dict[str, str | None] = {}
    for i, arg in enumerate(args):
        if not arg.startswith("--"):
            continue
        name, equals, value = arg.partition("=")
        follower = args[i + 1] if i + 1 < len(args) else "--"
        after = None if follower.startswith("--") else follower
        flags[_canonical(name)] = value if equals else after
    path = flags.get("--config")
    if path:
        for name, value in read_yaml(path, "--config").items():
            flags.setdefault(_canonical(f"--{name}"), str(value))
    return flags


def find_gpu() -> bool:
    """Whether this machine has an accelerator that this process may see."""
    for name in _HIDE_VARIABLES:
        if os.environ.get(name) in ("", "-1"):
            return False
    return any(Path(file).exists() for file in _GPU_FILES)


def require_sglang() -> None:
    """Raise ConfigError when SGLang, or DepCache's plugin for it, is not installed here."""
    if importlib.util.find_spec("sglang") is None:
        raise ConfigError(f"SGLang is not installed in this environment: {server_command()}")
    fault = find_fault()
    if fault is not None:
        raise ConfigError("; ".join(fault))


def require_free_port(args: Sequence[str]) -> None:
    """Raise ServerError when a server with these arguments could not listen where it should.

    SGLang finds out when the model is loaded, which takes minutes.
    """
    given = given_flags(args)
    host, port = given.get("--host") or DEFAULT_HOST, given.get("--port") or DEFAULT_PORT
    if not port.isdecimal():
        return  # SGLang refuses it at once
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found[:1]:
            with socket.socket(family, kind, protocol) as probe:
                # As the server will: a port that was let go of a moment ago is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServerError(
            f"the server cannot listen on port {port} of {host} ({reason}): stop what runs there, "
            "or choose another with --port"
        ) from None


def _canonical(name: str) -> str:
    name = "--" + name.removeprefix("--").replace("_", "-")
    return _ALIASES.get(name, name)
