# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers as people write them, and a server that is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from depcache.client import Client
from depcache.client.address import read_address
from depcache.errors import ConfigError
from depcache.graph.openai_extractor import OpenAIExtractor
from tests.helpers.chat_server import start_chat_server
from tests.helpers.ends import SLOWEST_S


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("127.0.0.1:30000", "http://127.0.0.1:30000"),
        (" gpu-box:8000/ ", "http://gpu-box:8000"),
        ("localhost", "http://localhost"),
        ("localhost:30000/v1", "http://localhost:30000"),
        ("http://host:1/v1/", "http://host:1"),
        ("https://host/depcache", "https://host/depcache"),
        ("[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_an_address_needs_no_scheme(written: str, url: str) -> None:
    assert read_address(written) == Client(written).base_url == url


@pytest.mark.parametrize(
    "written", ["", " ", "/v1", ":30000", "host:port", "host:99999", "ftp://host", "a b:1", "::1:3"]
)
def test_what_is_no_address_is_refused_at_once(written: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        Client(written)


def test_a_wrong_address_shows_no_password() -> None:
    with pytest.raises(ConfigError) as caught:
        Client("ftp://ann:secret@host")
    assert "secret" not in str(caught.value)


def test_extraction_and_the_environment_take_such_addresses() -> None:
    with start_chat_server(lambda _: (200, '{"triples": []}')) as (url, bodies):
        bare = url.removeprefix("http://")
        assert OpenAIExtractor(bare).extract("x") == []
        assert Client(bare).chat([{"role": "user", "content": "?"}]).text == '{"triples": []}'
        done = run_command("status", DEPCACHE_SERVER=bare)
    assert len(bodies) == 2
    # It was reached, and is no server with DepCache.
    assert done.returncode == 3 and f"{url}/depcache/status" in done.stderr


def run_command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-m", "depcache.cli.main", *arguments]
    env = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=SLOWEST_S, env=env)


@pytest.mark.parametrize("streamed", [False, True])
def test_without_a_server_a_program_ends_in_one_sentence(streamed: bool) -> None:
    code = (
        "import depcache\n"
        f"depcache.Client('127.0.0.1:9').ask([('a', 'r', 'b')], 'Q?', stream={streamed})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SLOWEST_S
    )
    *trace, last = done.stderr.splitlines()
    assert last.startswith("depcache.errors.ServerError: http://127.0.0.1:9/v1/chat/completions")
    assert "cannot be reached" in last and "Connection refused" in last
    # One trace, of this program and this package only.
    assert done.stderr.count("Traceback") == 1
    assert not any("httpx" in line or "httpcore" in line for line in trace)
