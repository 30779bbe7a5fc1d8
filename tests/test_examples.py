# SPDX-License-Identifier: Apache-2.0
"""Every example answers rightly; without DepCache it does what it can, and says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chat_server import start_chat_server
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_serve

pytestmark = pytest.mark.sglang

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ["01_python_client.py", "02_openai_sdk.py", "03_httpx_transport.py", "05_frontend.py"]
if shutil.which("curl"):
    NAMES.append("06_curl.sh")
# depcache-tiny writes no SQL, so this one's answers are nobody's.
TABLES = "07_text_to_sql.py"
# These ask what only DepCache knows.
ASKING_MORE = ("01_python_client.py", "06_curl.sh")

BORN = "Marie Curie -> born in -> Warsaw"
RIVER = f"{BORN} -> inverse of flows through -> Vistula -> flows into -> Baltic Sea"
PRIZES = [f"Marie Curie -> won -> Nobel Prize in {subject}" for subject in ("Physics", "Chemistry")]
# What an example is answered, question by question; each of several is right.
RIGHT = {
    "01_python_client.py": [[RIVER], PRIZES],
    "02_openai_sdk.py": [PRIZES],
    "03_httpx_transport.py": [[BORN], [BORN]],
    "04_engine.py": [PRIZES],
    "05_frontend.py": [[BORN], PRIZES],
    "06_curl.sh": [[BORN]],
}


def check_answers(name: str, stdout: str) -> None:
    """Every answer says a path that stands in the facts, and names its end."""
    text = stdout.replace("\\n", "\n")  # curl shows JSON
    found = re.findall(r"(?:answer: |\"content\":\"|^)([^:\n]+)\nAnswer: ([\w ]+)", text, re.M)
    assert len(found) == len(RIGHT[name]), stdout
    for (path, answer), right in zip(found, RIGHT[name], strict=True):
        assert path in right
        assert answer == path.split(" -> ")[-1]


# By class, so that one server has ended before the next starts.
@pytest.fixture(scope="class")
def depcache_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_serve("depcache-tiny", log=tmp_path_factory.mktemp("depcache") / "log") as url:
        yield url


@pytest.fixture(scope="class")
def stock_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("stock") / "log"
    with start_serve("depcache-tiny", "--stock", log=log) as url:
        yield url


def run(name: str, url: str = "", *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "bash" if name.endswith(".sh") else sys.executable
    return subprocess.run(
        [program, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
        env={**os.environ, "DEPCACHE_SERVER": url},
    )


class TestWithDepCache:
    @pytest.mark.parametrize("name", NAMES)
    def test_an_example_answers_rightly_and_shows_what_was_reused(
        self, name: str, depcache_url: str
    ) -> None:
        done = run(name, depcache_url)
        assert done.returncode == 0, done.stdout + done.stderr
        check_answers(name, done.stdout)
        assert "missed" in done.stdout
        assert "without DepCache" not in done.stdout

    def test_the_example_of_tables_computes_each_table_once(self, depcache_url: str) -> None:
        done = run(TABLES, depcache_url)
        assert done.returncode == 0, done.stdout + done.stderr
        missed = [int(number) for number in re.findall(r"missed=(\d+)", done.stdout)]
        assert len(missed) == 3 and all(missed)
        again = run(TABLES, depcache_url)
        assert re.findall(r"missed=(\d+)", again.stdout) == ["0", "0", "0"]


class TestStock:
    @pytest.mark.parametrize("name", NAMES)
    def test_an_example_answers_rightly_and_says_what_is_missing(
        self, name: str, stock_url: str
    ) -> None:
        done = run(name, stock_url)
        assert "Traceback" not in done.stderr
        check_answers(name, done.stdout)
        if name in ASKING_MORE:
            assert done.returncode == 1
            assert "depcache serve" in done.stderr.splitlines()[-1]
        else:
            assert done.returncode == 0, done.stderr
            assert "unknown, the server runs without DepCache" in done.stdout

    def test_the_example_of_tables_says_what_is_missing(self, stock_url: str) -> None:
        done = run(TABLES, stock_url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("unknown, the server runs without DepCache") == 3


@pytest.mark.parametrize("name", ["02_openai_sdk.py", "03_httpx_transport.py"])
def test_any_openai_server_will_do(name: str) -> None:
    with start_chat_server(lambda body: (200, "Warsaw")) as (url, _):
        done = run(name, url)
    assert done.returncode == 0, done.stderr
    assert "answer: Warsaw" in done.stdout
    assert "unknown, the server runs without DepCache" in done.stdout


@pytest.mark.parametrize("name", [*NAMES, TABLES])
def test_an_example_without_a_server_is_one_sentence(name: str) -> None:
    done = run(name, "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_engine_example_answers_rightly() -> None:
    done = run("04_engine.py")
    assert done.returncode == 0, done.stderr
    check_answers("04_engine.py", done.stdout)
    assert "then: {" in done.stdout
