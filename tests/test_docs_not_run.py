# SPDX-License-Identifier: Apache-2.0
"""What pages show and `test_docs.py` does not run: why not, and what of it can be checked."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt

import depcache
from depcache.cli.main import app
from depcache.config import Config

ROOT = Path(__file__).parents[1]
GENERATED = "docs/reference/commands.md"  # by `make docs`, from the help of the commands
PAGES = [
    *("README.md", "CONTRIBUTING.md", "examples/README.md", "datasets/README.md"),
    "models/tiny/depcache_tiny/README.md",
    *sorted(
        name
        for page in (ROOT / "docs").rglob("*.md")
        if (name := str(page.relative_to(ROOT))) != GENERATED
    ),
]

# How a command of a `console` block begins -> why it is not run here.
NOT_RUN = {
    "pip install": "no package index in a test: scripts/wheel_check.py installs every extra",
    "make": "each is a job of CI or this very test run",
    "depcache serve": "serves until it is ended: run with --dry-run below, and for real by others",
    "depcache finetune": "takes a model and minutes: tests/depcache/cli/test_finetune.py",
    "depcache graph build": "needs a model that extracts: tests/depcache/cli/test_graph_build.py",
    "python -m eval": "needs public data sets and up to hours; tests/eval runs each one small",
    "python -m models.tiny": "trains for two hours: tests/models runs it small",
    "python -m sglang.bench_serving": "SGLang's own, on a trace that eval serve --export wrote",
}
# A page with `py` blocks -> why they are not run here.
FRAGMENTS = {
    "docs/use/langchain.md": "needs langchain-openai, which DepCache does not",
    "docs/use/llamaindex.md": "needs llama-index, which DepCache does not",
    "docs/use/neo4j-graphrag.md": "needs neo4j-graphrag, which DepCache does not",
    "docs/use/openai.md": "needs langchain-openai, which DepCache does not",
    "docs/use/sglang.md": "a part of examples/04_engine.py, which tests/test_examples.py runs",
}
# They show and ask for nothing: pictures, output, formulas.
SHOWN = {"", "text", "mermaid"}


def blocks(page: str, *kinds: str) -> list[str]:
    """What the fenced blocks of a page with one of these words behind the fence say."""
    tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    return [
        token.content for token in tokens if token.type == "fence" and token.info.strip() in kinds
    ]


def commands(page: str) -> Iterator[list[str]]:
    """The commands of a page's `console` blocks, as words, without comments and variables."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            if words:
                yield words


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


def reason_of(words: list[str]) -> str | None:
    """The key of NOT_RUN that a command begins with."""
    text = " ".join(words)
    found = [
        start for start in NOT_RUN if text == start or text.startswith((f"{start} ", f"{start}."))
    ]
    assert len(found) <= 1, text
    return found[0] if found else None


def test_all_blocks_say_what_they_are() -> None:
    for page in PAGES:
        tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
        kinds = {token.info.strip() for token in tokens if token.type == "fence"}
        assert kinds <= SHOWN | {"bash", "python", "console", "py", "json", "yaml"}, page
        for block in blocks(page, *SHOWN):
            assert not re.match(r"\$?\s*(pip|depcache|make|python|curl) ", block), (page, block)


def test_each_command_that_is_not_run_has_a_reason_and_each_reason_a_command() -> None:
    reasons = {" ".join(words): reason_of(words) for _, words in COMMANDS}
    assert [text for text, reason in reasons.items() if reason is None] == []
    assert set(reasons.values()) == set(NOT_RUN)
    assert {page for page in PAGES if blocks(page, "py")} == set(FRAGMENTS)


def test_files_in_reasons_are_there() -> None:
    named = re.findall(r"\b(?:tests|scripts|examples)(?:/\w+)+(?:\.py)?", f"{NOT_RUN} {FRAGMENTS}")
    assert len(named) > 5
    assert all((ROOT / name).exists() for name in named)


def test_extras_that_pages_install_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra
        for _, words in COMMANDS
        if words[:2] == ["pip", "install"]
        for word in words[2:]
        for extra in re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*)\]", word)))
    }
    assert len(extras) >= 4
    assert extras <= set(project["optional-dependencies"])


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {words[1] for _, words in COMMANDS if words[0] == "make"}
    assert used and used <= targets


def test_depcache_has_the_options_that_pages_show() -> None:
    checked = 0
    for _, words in COMMANDS:
        if words[0] != "depcache" or words[1] == "serve":
            continue
        command: Any = typer.main.get_command(app)
        rest = words[1:]
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        options = {name for option in command.params for name in option.opts}
        assert {word for word in rest if word.startswith("--")} <= options, words
        checked += 1
    assert checked >= 3


def test_serve_takes_what_pages_show(tmp_path: Path) -> None:
    shown = {tuple(words) for _, words in COMMANDS if words[:2] == ["depcache", "serve"]}
    assert len(shown) >= 4
    for _, _, model, *flags in shown:
        model = "depcache-tiny" if model == "MODEL" else model
        command = [sys.executable, "-m", "depcache.cli.main", "serve", model, *flags, "--dry-run"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.sglang
def test_eval_has_the_commands_and_options_that_pages_show() -> None:
    shown: dict[str, set[str]] = {}
    for _, words in COMMANDS:
        if words[:3] == ["python", "-m", "eval"]:
            flags = {word.partition("=")[0] for word in words[4:] if word.startswith("--")}
            shown.setdefault(words[3], set()).update(flags)
    assert len(shown) >= 3
    for name, flags in shown.items():
        done = subprocess.run(
            [sys.executable, "-m", "eval", name, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (name, done.stderr)
        assert flags <= set(re.findall(r"--[\w-]+", done.stdout)), name


def test_fragments_name_what_depcache_has() -> None:
    for page in FRAGMENTS:
        for block in blocks(page, "py"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "depcache":
                    assert hasattr(depcache, node.attr), (page, node.attr)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "depcache.clients":
                    (name,) = node.args
                    assert depcache.clients(ast.literal_eval(name)), page
                ours = isinstance(node, ast.ImportFrom) and node.module == "depcache"
                if isinstance(node, ast.ImportFrom) and ours:
                    assert {alias.name for alias in node.names} <= set(depcache.__all__), page


@pytest.mark.sglang
def test_fragments_import_what_the_plugin_has() -> None:
    for block in blocks("docs/use/sglang.md", "py"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module != "depcache":
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names), node.module


def test_data_that_pages_show_is_well_formed() -> None:
    settings = [yaml.safe_load(block) for page in PAGES for block in blocks(page, "yaml")]
    assert settings and all(Config(**values) for values in settings)
    texts = [block for page in PAGES for block in blocks(page, "json")]
    assert texts and all(json.loads(text) for text in texts)
