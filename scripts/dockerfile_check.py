# SPDX-License-Identifier: Apache-2.0
"""Carry out a Dockerfile without Docker: its COPY, ENV, WORKDIR and RUN in order, below a folder.

    make image-check
    python scripts/dockerfile_check.py [--python PYTHON]

A new environment with the SGLang that the plugin requires stands in for the image's Python. PYTHON
may name another that has it; that one is changed. Absolute paths lead below the folder. A RUN that
makes users needs the image's root: it is told and not run. At the end ENTRYPOINT and CMD run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = {"FROM", "LABEL", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK"}
KNOWN |= {"ENTRYPOINT", "CMD"}
# They change the machine's users, so they run in an image only.
ROOT_ONLY = re.compile(r"\b(useradd|groupadd|adduser|chown)\b")
# Folders of the image that RUN lines name.
PLACES = re.compile(r"(?<![\w.:/-])/(?=(?:opt|home|tmp)/)")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile in order: (name, arguments in one line).

    Raises ValueError for one that this script does not know.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    for line in joined.splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            if name.upper() not in KNOWN:
                raise ValueError(f"Dockerfile: no way to check {name!r}; add it to this script")
            yield name.upper(), re.sub(r"\s+", " ", rest).strip()


def is_sent(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore lets a file of the context through.

    A pattern speaks of a file or folder and all below it; of those that match, the last counts.
    """
    parts = path.split("/")
    above = ["/".join(parts[:num]) for num in range(1, len(parts) + 1)]
    sent = True
    for pattern in patterns:
        expression = re.escape(pattern.removeprefix("!").rstrip("/"))
        expression = expression.replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(expression, name) for name in above):
            sent = pattern.startswith("!")
    return sent


def send_context(context: Path, patterns: list[str], target: Path) -> int:
    """Copy git's files that .dockerignore lets through; returns how many."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=context, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    sent = [name for name in names if is_sent(name, patterns) and (context / name).is_file()]
    for name in sent:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(context / name, target / name)
    return len(sent)


class Image:
    """What a Dockerfile makes, below a folder: paths of the image lead below `root`."""

    def __init__(self, root: Path, context: Path, environment: dict[str, str]) -> None:
        self.root = root
        self.context = context
        self.environment = environment
        self.work = "/"
        self.command: dict[str, list[str]] = {"ENTRYPOINT": [], "CMD": []}

    def place(self, path: str) -> Path:
        """Where a path of the image is here; relative ones are in the working folder."""
        return self.root / os.path.join(self.work, path).lstrip("/")

    def run(self, command: list[str]) -> None:
        """Run in the image's working folder; raises CalledProcessError where it fails."""
        subprocess.run(command, cwd=self.place("."), env=self.environment, check=True)

    def apply(self, name: str, rest: str) -> str:
        """Carry out one instruction; returns what was done."""
        if name == "WORKDIR":
            self.work = rest
            self.place(".").mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            return self._copy(shlex.split(rest))
        elif name == "ENV":
            pairs = [pair.split("=", 1) for pair in shlex.split(rest)]
            self.environment |= {key: PLACES.sub(f"{self.root}/", text) for key, text in pairs}
        elif name == "RUN":
            if ROOT_ONLY.search(rest):
                return "not run: needs the image's root"
            self.run(["sh", "-ec", PLACES.sub(f"{self.root}/", rest)])
        elif name in self.command:
            self.command[name] = json.loads(rest)
        else:
            return "noted"
        return "done"

    def _copy(self, names: list[str]) -> str:
        *sources, target = names
        for source in sources:
            here = self.context / source
            if not here.exists():
                raise FileNotFoundError(f"COPY {source}: not in the context (see .dockerignore)")
            # As Docker does: a folder's content, a file into a folder that ends with a slash.
            if here.is_dir():
                shutil.copytree(here, self.place(target), dirs_exist_ok=True)
            else:
                into = self.place(target)
                if target.endswith("/"):
                    into.mkdir(parents=True, exist_ok=True)
                shutil.copy2(here, into)
        return f"done: {len(sources)} of the context"


def stand_in(folder: Path) -> Path:
    """A new environment with the SGLang of the image; returns its Python."""
    image = re.search(r"^FROM lmsysorg/sglang:v([\d.]+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert image is not None
    python = folder / "bin/python3"
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is not None:
        subprocess.run([uv, "venv", "--quiet", "--seed", "-p", sys.executable, folder], check=True)
        installer = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        installer = [str(python), "-m", "pip", "install", "--quiet"]
    constraints = str(ROOT / f"constraints-{image[1]}.txt")
    subprocess.run([*installer, "-c", constraints, f"sglang=={image[1]}"], check=True)
    return python


def main() -> None:
    """Carry out the Dockerfile of this checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", type=Path, help="an environment's Python; it is changed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dockerfile-") as name:
        scratch = Path(name)
        python = options.python or stand_in(scratch / "python")
        environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
        environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
        context = scratch / "context"
        patterns = [
            line.strip()
            for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.strip() and not line.startswith("#")
        ]
        print(f"context: {send_context(ROOT, patterns, context)} files", flush=True)
        root = scratch / "image"
        (root / "tmp").mkdir(parents=True)
        image = Image(root, context, environment)
        for kind, rest in instructions((ROOT / "Dockerfile").read_text()):
            print(f"{kind} {rest[:100]}", flush=True)
            print(f"  {image.apply(kind, rest)}", flush=True)
        command = [*image.command["ENTRYPOINT"], *image.command["CMD"]]
        print(f"$ {shlex.join(command)}", flush=True)
        image.run(command)


if __name__ == "__main__":
    main()
