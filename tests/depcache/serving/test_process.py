# SPDX-License-Identifier: Apache-2.0
"""A server process is started, waited for, and stopped with everything it started."""

import os
import random
import socket
import sys
import time

import pytest

from depcache.errors import ServerError
from depcache.serving.launch import Launch
from depcache.serving.process import ServerProcess, find_free_port
from tests.helpers.ends import SLOWEST_S

HTTP = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def process(code, tmp_path, port=None):
    port = port or find_free_port()
    launch = Launch([sys.executable, "-c", code, str(port)])
    return ServerProcess(launch, f"http://127.0.0.1:{port}", tmp_path / "log")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Killed and not yet waited for by init is dead all the same.
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_server_is_ready_and_later_gone_with_its_children(tmp_path):
    with process(HTTP, tmp_path) as server:
        assert 0 <= server.wait_until_ready(SLOWEST_S) < SLOWEST_S
        pid = int((tmp_path / "log").read_text().split()[1])
        assert is_alive(pid)
    deadline = time.monotonic() + SLOWEST_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
    server.stop()


def test_a_server_that_ends_says_so_with_the_end_of_its_log(tmp_path):
    code = "print(*range(100), sep='\\n'); print('no memory'); raise SystemExit(7)"
    with process(code, tmp_path) as server, pytest.raises(ServerError) as caught:
        server.wait_until_ready(SLOWEST_S)
    text = str(caught.value)
    assert "code 7" in text
    assert "no memory" in text
    assert "\n50\n" not in text
    assert str(tmp_path / "log") in text


def test_a_server_that_never_answers_is_given_up(tmp_path):
    with (
        process("import time; time.sleep(3600)", tmp_path) as server,
        pytest.raises(ServerError, match="not ready after 1 s"),
    ):
        server.wait_until_ready(timeout_s=1)


def test_a_server_that_ignores_the_signal_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("depcache.serving.process._STOP_S", 0.5)
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); "
        "print('x', flush=True); time.sleep(3600)"
    )
    server = process(code, tmp_path)
    server.start()
    while not (tmp_path / "log").read_text():
        time.sleep(0.05)
    started = server._process
    server.stop()
    assert started is not None
    assert started.returncode == -9


def test_a_command_that_is_not_there_is_a_server_error(tmp_path):
    server = ServerProcess(Launch(["/nowhere/python"]), "http://127.0.0.1:9", tmp_path / "log")
    with pytest.raises(ServerError, match="cannot be started"):
        server.start()


def test_a_free_port_is_one_that_no_connection_is_given(monkeypatch):
    ports = {find_free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < 32_768
    with socket.socket() as taken:
        port = find_free_port()
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr("depcache.serving.process._PORTS", range(port, port + 1))
        monkeypatch.setattr("depcache.serving.process._MAX_TRIES", 1)
        with pytest.raises(ServerError, match="in use"):
            find_free_port()


def test_processes_with_one_seed_do_not_choose_the_same_ports():
    def choose():
        random.seed(42)
        return [find_free_port() for _ in range(5)]

    assert choose() != choose()
