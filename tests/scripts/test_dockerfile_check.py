# SPDX-License-Identifier: Apache-2.0
"""How a Dockerfile is carried out without Docker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts.dockerfile_check import Image, instructions, is_sent, send_context

ROOT = Path(__file__).parents[2]
SMALL = """\
# syntax=docker/dockerfile:1
FROM somewhere:1.0
WORKDIR /opt/app
COPY a.txt folder ./
COPY folder kept
RUN echo one > /tmp/said \\
 # said twice
 && echo two >> /tmp/said
RUN useradd someone
ENV PLACE=/home/someone/.cache \\
    WORD="two words"
RUN echo "$PLACE $WORD" > env.txt
ENTRYPOINT ["cat"]
CMD ["a.txt"]
"""


def test_instructions_are_lines_without_comments_and_continuations() -> None:
    found = list(instructions(SMALL))
    assert [name for name, _ in found] == [
        *("FROM", "WORKDIR", "COPY", "COPY", "RUN", "RUN", "ENV", "RUN", "ENTRYPOINT", "CMD")
    ]
    assert found[4] == ("RUN", "echo one > /tmp/said && echo two >> /tmp/said")


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="ADD"):
        list(instructions("FROM a\nADD b c\n"))


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("LICENSE", True),
        ("README.md", False),
        ("depcache/cli/main.py", True),
        ("depcache/cli/__pycache__/main.pyc", False),
        ("models/tiny/train.py", False),
        ("models/tiny/depcache_tiny/__init__.py", True),
        ("docs/LICENSE", False),
    ],
)
def test_dockerignore_lets_through_what_the_wheels_are_made_of(path: str, sent: bool) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert is_sent(path, [line for line in lines if line and not line.startswith("#")]) == sent


def test_an_image_is_made_below_a_folder(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "folder").mkdir(parents=True)
    (context / "a.txt").write_text("a")
    (context / "folder/b.txt").write_text("b")
    (tmp_path / "image/tmp").mkdir(parents=True)
    image = Image(tmp_path / "image", context, dict(os.environ))
    said = [image.apply(name, rest) for name, rest in instructions(SMALL)]
    app = tmp_path / "image/opt/app"
    assert (app / "a.txt").read_text() == "a"
    assert (app / "b.txt").read_text() == (app / "kept/b.txt").read_text() == "b"
    assert (tmp_path / "image/tmp/said").read_text() == "one\ntwo\n"
    assert (app / "env.txt").read_text() == f"{tmp_path}/image/home/someone/.cache two words\n"
    assert said[5] == "not run: needs the image's root"
    assert image.command == {"ENTRYPOINT": ["cat"], "CMD": ["a.txt"]}
    with pytest.raises(FileNotFoundError, match="missing"):
        image.apply("COPY", "missing ./")
    with pytest.raises(subprocess.CalledProcessError):
        image.apply("RUN", "false")


def test_all_that_our_dockerfile_copies_is_in_its_context(tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert send_context(ROOT, patterns, tmp_path / "context") > 200
    image = Image(tmp_path / "image", tmp_path / "context", {})
    for name, rest in instructions((ROOT / "Dockerfile").read_text()):
        if name in ("WORKDIR", "COPY"):
            image.apply(name, rest)
    made = tmp_path / "image/opt/depcache"
    assert (made / "depcache/cli/main.py").exists()
    assert (made / "models/tiny/depcache_tiny/model/model.safetensors").exists()
    assert not (made / "README.md").exists()
