# SPDX-License-Identifier: Apache-2.0
"""The command `depcache picker`, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

import depcache
from depcache.cli.main import app
from depcache.cli.output import EXIT_TERMINATED
from depcache.serving.process import find_free_port
from tests.helpers.ends import SLOWEST_S


@contextmanager
def running(*flags: str, environment: dict[str, str] | None = None) -> Iterator[httpx.Client]:
    """Before a server that is not there."""
    port = find_free_port()
    command = [sys.executable, "-m", "depcache.cli.main", "picker", "127.0.0.1:1/v1"]
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen([*command, "--port", str(port), *flags], env=variables)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            deadline = time.monotonic() + SLOWEST_S
            while True:
                try:
                    client.get("/health")
                    break
                except httpx.ConnectError:
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        assert process.wait(SLOWEST_S) == EXIT_TERMINATED


@pytest.fixture
def picker() -> Iterator[httpx.Client]:
    with running() as client:
        yield client


def test_it_serves_though_no_server_is_there(picker: httpx.Client) -> None:
    assert picker.get("/health").status_code == 503
    [told] = picker.get("/servers").json()
    assert told["url"] == "http://127.0.0.1:1" and not told["alive"]
    assert picker.post("/pick", json={"roots": ["a"]}).status_code == 503
    # Whoever is told to ask it goes on without.
    client = depcache.Client("http://127.0.0.1:1", picker=str(picker.base_url))
    prompt = depcache.render([("Ada", "knows", "Bob")], "Who?")
    with pytest.raises(depcache.ServerError, match=r"127\.0\.0\.1:1"):
        client.chat(prompt.messages, **prompt.extra_body)
    client.close()


def test_what_is_no_address_is_an_error() -> None:
    result = CliRunner().invoke(app, ["picker", "ftp://one"])
    assert isinstance(result.exception, depcache.ConfigError)
    assert "no address" in str(result.exception)


def test_without_its_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["picker", "one"])
    assert "depcache[picker]" in str(result.exception)


def test_a_key_of_the_environment_is_asked_for() -> None:
    variables = {"DEPCACHE_PICKER_KEY": "secret", "DEPCACHE_PRIVATE_COUNTS": "true"}
    with running(environment=variables) as client:
        assert client.get("/servers").status_code == 401
        reply = client.get("/servers", headers={"Authorization": "Bearer secret"})
        assert reply.status_code == 200


def test_where_counts_are_private_it_starts_with_a_key_only() -> None:
    for environment in ({}, {"DEPCACHE_PICKER_KEY": ""}):
        result = CliRunner().invoke(app, ["picker", "one", "--private-counts"], env=environment)
        assert isinstance(result.exception, depcache.ConfigError)
        assert "DEPCACHE_PICKER_KEY" in str(result.exception)


@pytest.mark.parametrize(
    ("host", "flags", "warns"),
    [
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("picker.example", (), True),
        ("0.0.0.0", ("--picker-key", "secret"), False),
        ("127.0.0.1", (), False),
        ("::1", (), False),
        ("localhost", (), False),
    ],
)
def test_it_warns_where_others_reach_it_and_it_has_no_key(
    monkeypatch: pytest.MonkeyPatch, host: str, flags: tuple[str, ...], warns: bool
) -> None:
    listened: list[str] = []
    # Not to listen on every address of this machine.
    monkeypatch.setattr(uvicorn, "run", lambda app, host, **rest: listened.append(host))
    result = CliRunner().invoke(app, ["picker", "one", "--host", host, *flags])
    assert result.exit_code == 0 and listened == [host]
    assert ("has no key" in result.stderr) is warns
