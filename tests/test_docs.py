# SPDX-License-Identifier: Apache-2.0
"""What README and docs say runs as it stands there, and cites what is there."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import depcache
from depcache.serving.process import find_free_port
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_serve

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md"))
PORT = "30000"  # what the pages say

FACTS = [
    "Marie Curie\tborn in\tWarsaw",
    "Warsaw\tlocated in\tPoland",
    "Warsaw\ton\tVistula",
    "Marie Curie\twon\tNobel Prize in Physics",
    "Marie Curie\twon\tNobel Prize in Chemistry",
    "Marie Curie\tmarried to\tPierre Curie",
    "Pierre Curie\tborn in\tParis",
    "Danube\tflows into\tBlack Sea",
]


def blocks_of(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page that run: (bash or python, what it says)."""
    tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text())
    return [
        (token.info.strip(), token.content)
        for token in tokens
        if token.type == "fence" and token.info.strip() in ("bash", "python")
    ]


RUNNING = [page for page in PAGES if blocks_of(page)]


def run_blocks(page: str, folder: Path, port: int, environment: dict[str, str]) -> str:
    """Run a page from top to bottom in `folder`, all its Python in one process.

    Returns what it printed. Raises where a command or a statement fails.
    """
    script = [
        "import os, subprocess, sys",
        "def bash(block):",
        "    sys.stdout.flush()",
        "    subprocess.run(['bash', '-euo', 'pipefail', '-c', block], check=True)",
    ]
    for kind, text in blocks_of(page):
        text = text.replace(PORT, str(port))
        text = text.replace("serve depcache-tiny", f"serve depcache-tiny --port {port}")
        script.append(text if kind == "python" else f"bash({text!r})")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SLOWEST_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def environment(port: int) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "DEPCACHE_SERVER": f"http://127.0.0.1:{port}"}


@pytest.mark.sglang
class TestDocs:
    @pytest.fixture(scope="class")
    def port(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
        log = tmp_path_factory.mktemp("docs") / "log"
        with start_serve("depcache-tiny", log=log) as url:
            yield int(url.rsplit(":", 1)[1])

    @pytest.mark.parametrize("page", RUNNING)
    def test_all_that_a_page_says_runs(self, page: str, port: int, tmp_path: Path) -> None:
        (tmp_path / "facts.tsv").write_text("".join(f"{line}\n" for line in FACTS))
        run_blocks(page, tmp_path, port, environment(port))


@pytest.mark.sglang
def test_the_readme_leads_from_own_facts_to_right_answers(tmp_path: Path) -> None:
    port = find_free_port()
    variables = environment(port) | {"DEPCACHE_CPU_THREADS": "1"}
    # The server that the README starts in the background ends with the group.
    code = (
        "from pathlib import Path\nfrom tests.test_docs import environment, run_blocks\n"
        f"print(run_blocks('README.md', Path({str(tmp_path)!r}), {port}, environment({port})))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SLOWEST_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert "Answer: London" in output
    assert "Answer: Hudson" in output
    assert "ReuseReport(" in output


def test_the_readme_is_read_to_the_end() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 8192
    assert text.count("\n") <= 120
    # A package index shows it too, where no relative link leads anywhere.
    assert not re.findall(r"\]\((?!#|https?:)[^)]*\)", text)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(
        r"`((?:depcache|sglang_patches|flashinfer_masks|eval|tests|examples|deploy|scripts|docs|models)"
        r"/[\w./*-]+)`",
        text,
    )
    for name in named:
        if name != "tests/a/test_b.py":  # stands for any
            assert list(ROOT.glob(name.rstrip("/"))), f"{page} names {name}"


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d[\d.]*)\] - \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
    assert versions[0] == depcache.__version__
    assert f"to {depcache.__version__}\n" in (DOCS / "operate/upgrade.md").read_text()


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/api.md").read_text()
    told = {line.rpartition(".")[2] for line in text.splitlines() if line.startswith("::: ")}
    errors = {name for name in depcache.__all__ if name.endswith("Error")}  # on one line together
    assert sorted(set(depcache.__all__) - told - errors - {"__version__"}) == []


def test_what_a_package_index_shows_leads_nowhere_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = project["readme"]["text"]
    assert not re.findall(r"\]\((?!https?:)|<img|!\[", text)
    # Its program is that of the README, which runs.
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert ("python", program) in blocks_of("README.md")


def test_pages_say_nothing_of_where_they_were_written() -> None:
    for page in ("README.md", "CONTRIBUTING.md", *PAGES):
        text = (ROOT / page).read_text()
        here = rf"{re.escape(str(ROOT))}|(?<![\w.-])/(?:tmp|root|home)/"
        assert not re.search(rf"{here}|\bshared/(designs|papers|data)", text), page


def test_columns_of_a_docstring_become_a_table_and_prose_stays() -> None:
    spec = importlib.util.spec_from_file_location("columns", ROOT / "scripts/docstring_columns.py")
    assert spec is not None and spec.loader is not None
    columns = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(columns)
    text = "Reads  a file.\nAnd more.\n\npath   where it is\n"
    text += "sizes  bytes | of each\n       part\n\n    code"
    assert columns.to_tables(text).split("\n\n") == [
        "Reads  a file.\nAnd more.",
        "| | |\n|---|---|\n| `path` | where it is |\n| `sizes` | bytes \\| of each part |",
        "    code",
    ]
