# SPDX-License-Identifier: Apache-2.0
"""The commands: what they print, what `--json` gives, and their exit codes."""

import json
import os
import socket
import subprocess
import sys

import httpx
import pytest

from depcache import __version__
from depcache.cli import inspect, main, serve
from depcache.cli.doctor import Check
from depcache.errors import ConfigError, PromptError, ServerError
from depcache.prompt.wire import make_schema
from tests.depcache.client.fake_server import REPORT, FakeServer
from tests.helpers.ends import SLOWEST_S
from tests.helpers.rendered import paths_of

ROW = {"segment": 0, "parent": -1, "start": 9, "num_tokens": 3, "position": 9, "cached": 3}
TABLE = [
    {**ROW, "text": "\na[b]"},
    {**ROW, "segment": 1, "parent": 0, "start": 12, "text": " c", "cached": 0},
]


@pytest.fixture
def server(monkeypatch):
    """A server that every client of the commands talks to."""
    fake = FakeServer()
    real_answer, real_client = fake.answer, httpx.Client

    def answer(request):
        if request.url.path == "/depcache/status":
            return httpx.Response(200, json={"version": "1", "cache": {"nodes": 4}, "active": True})
        if request.url.path == "/depcache/explain":
            real_answer(request)
            return httpx.Response(200, json={**REPORT, "trees": 1, "segments": 2, "table": TABLE})
        return real_answer(request)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(httpx, "Client", lambda **options: real_client(transport=transport))
    return fake


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"depcache {__version__}\n", "")


def test_the_schema_is_the_published_one(call):
    code, out, _ = call("schema")
    assert (code, json.loads(out)) == (0, make_schema())


def test_config_show_gives_the_settings_in_force(call, monkeypatch):
    monkeypatch.setenv("DEPCACHE_CPU_THREADS", "3")
    assert json.loads(call("config", "show", "--json")[1])["cpu_threads"] == 3
    assert "DEPCACHE_CPU_THREADS" in call("config", "show")[1]


def test_a_wrong_setting_is_one_sentence_and_exit_code_2(call, monkeypatch):
    monkeypatch.setenv("DEPCACHE_CPU_THREADS", "many")
    code, out, err = call("config", "show")
    assert (code, out) == (2, "")
    assert err.startswith("depcache: setting 'cpu_threads'")
    assert err.count("\n") == 1


def test_an_unknown_option_is_exit_code_2(call):
    assert call("status", "--nonsense")[0] == 2


@pytest.mark.parametrize(
    ("error", "code"), [(PromptError("p"), 2), (ConfigError("c"), 2), (ServerError("s"), 3)]
)
def test_every_error_has_its_exit_code(call, monkeypatch, error, code):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(inspect, "load_config", fail)
    assert call("config", "show") == (code, "", f"depcache: {error}\n")


def test_an_interrupted_command_ends_quietly(call, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", fail)
    assert call("schema") == (130, "", "")


# serve


def test_serve_passes_unknown_flags_on_and_ours_as_variables(call, monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    code, out, _ = call(
        "serve", "m", "-tp", 2, "--port", 1, "--attention-plan", "cascade", "--cpu-threads", 2,
        "--cpu-attention", "stock", "--depcache-config", "f.yaml", "--dry-run", "--json",
        "--experimental", "--tables", "t.jsonl", "--match-tables", "--log-level=x",
    )  # fmt: skip
    launch = json.loads(out)
    assert code == 0
    assert launch["argv"][-5:] == ["-tp", "2", "--port", "1", "--log-level=x"]
    assert launch["argv"][3:5] == ["--model-path", "m"]
    assert launch["env"] == {
        "DEPCACHE_ATTENTION_PLAN": "cascade",
        "DEPCACHE_CPU_ATTENTION": "stock",
        "DEPCACHE_CPU_THREADS": "2",
        "DEPCACHE_EXPERIMENTAL": "True",
        "DEPCACHE_TABLES": "t.jsonl",
        "DEPCACHE_MATCH_TABLES": "True",
        "DEPCACHE_CONFIG": "f.yaml",
        "MALLOC_ARENA_MAX": "2",
    }


def test_the_operators_number_of_arenas_stands(call, monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    code, out, _ = call("serve", "m", "--dry-run", "--json")
    assert code == 0
    assert "MALLOC_ARENA_MAX" not in json.loads(out)["env"]


def test_serve_dry_run_prints_a_line_for_a_shell(call):
    code, out, _ = call("serve", "--dry-run", "--model-path", "a b")
    assert code == 0
    assert out.endswith("--model-path 'a b'\n")


def test_serve_becomes_the_server(call, monkeypatch):
    executed = []

    def execute(file, argv, env):
        executed.append((file, argv, env))
        raise SystemExit(0)

    monkeypatch.setattr(serve, "require_sglang", lambda: None)
    monkeypatch.setattr(serve.os, "execvpe", execute)
    monkeypatch.setenv("DEPCACHE_CPU_THREADS", "1")
    code, _, err = call("serve", "m", "--cpu-threads", 2, "--port", 0)
    [(file, argv, env)] = executed
    assert code == 0
    assert file == argv[0] == sys.executable
    assert env["DEPCACHE_CPU_THREADS"] == "2"
    assert "sglang.launch_server" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dry-run"],
        ["m", "--stock", "--dry-run", "--radix-cache-backend", "depcache"],
        ["m", "--json"],
    ],
)
def test_serve_refuses_what_makes_no_sense(call, arguments):
    code, out, err = call("serve", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_serve_tries_the_port_before_the_model_is_loaded(call, monkeypatch):
    monkeypatch.setattr(serve, "require_sglang", lambda: None)
    monkeypatch.setattr(serve.os, "execvpe", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = call("serve", "m", "--port", port)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert f"cannot listen on port {port}" in err
        assert call("serve", "m", "--port", port, "--dry-run")[0] == 0


def test_serve_finds_a_wrong_setting_before_it_starts(call, monkeypatch):
    monkeypatch.setattr(serve, "require_sglang", lambda: None)
    monkeypatch.setenv("DEPCACHE_ATTENTION_PLAN", "magic")
    code, _, err = call("serve", "m")
    assert code == 2
    assert "magic" in err


# doctor


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_doctor_exits_with_1_only_for_problems(call, monkeypatch, state, code):
    checks = [Check("thing[0]", state, "detail [x]", "advice")]
    monkeypatch.setattr("depcache.cli.doctor.run_checks", lambda *_, **__: checks)
    got, out, _ = call("doctor", "--json")
    assert got == code
    assert json.loads(out)["ok"] is (code == 0)
    got, out, _ = call("doctor")
    assert got == code
    for word in (state, "thing[0]", "detail [x]", "advice"):
        assert word in out


# status and explain


def test_status_shows_the_server(call, server):
    assert json.loads(call("status", "--json")[1])["cache"] == {"nodes": 4}
    assert "cache.nodes" in call("status", "--verbose")[1]


STATUS = {
    "version": "1",
    "sglang_version": "2",
    "active": True,
    "attention_backend": "torch_native",
    "attention_plan": "auto",
    "seams": {"a": True, "b": True},
    "hooks": {"c": True},
    "problems": [],
    "cache": {
        "nodes": 7,
        "cached_tokens": 1500,
        "capacity_tokens": 9000,
        "evicted_tokens": 3,
        "eviction_policy": "lru",
        "tokens": {"requests": 4, "shared": 50, "shifted": 5, "loaded": 5, "missed": 20,
                   "plain": 20, "plain_requests": 1, "rejected_requests": 0},
        "host": None,
        "disk": {"cached_tokens": 10, "used_bytes": 2_500_000_000},
    },
    "config": {f"setting_{i}": i for i in range(20)},
}  # fmt: skip


def test_status_is_ten_lines_with_the_share_of_hits_first(call, monkeypatch):
    monkeypatch.setattr("depcache.cli.status.Client.status", lambda _: STATUS)
    code, out, _ = call("status")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 9
    words = "reused 60% of 100 prompt tokens; 75% of what stands before the task"
    assert " ".join(lines[0].split()) == words
    assert "4 with facts, 1 plain, 0 rejected" in lines[1]
    assert "1,500 tokens of 9,000, 7 nodes, 3 tokens evicted" in lines[2]
    assert lines[3].split() == ["host", "off"] and "2.50 GB" in lines[4]
    assert "2 of 2 seams, 1 of 1 hooks" in out and "setting_3" not in out
    assert "setting_3" in call("status", "-v")[1]
    assert json.loads(call("status", "--json")[1]) == STATUS


def test_status_says_what_is_wrong_and_that_nothing_was_asked(call, monkeypatch):
    broken = {**STATUS, "hooks": {"c": False}, "problems": ["it is torn"], "cache": {}}
    monkeypatch.setattr("depcache.cli.status.Client.status", lambda _: broken)
    out = call("status")[1]
    assert "nothing yet" in out and "0 of 1 hooks" in out
    assert "missing" in out and "it is torn" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell):
    def complete(line):
        words = line.split(" ")
        variables = {
            "_DEPCACHE_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        command = [sys.executable, "-m", "depcache.cli.main"]
        env = {**os.environ, **variables}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SLOWEST_S)
        return done.stdout

    assert "precompute" in complete("depcache pre") and "ask" not in complete("depcache pre")
    assert "--pruner" in complete("depcache ask --pr")


def test_completion_is_shown_for_the_shell_that_asks():
    # Which shell that is, typer reads off the parent process; so the parent is one.
    command = f"'{sys.executable}' -m depcache.cli.main --show-completion; exit $?"
    shown = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=SLOWEST_S
    )
    assert shown.returncode == 0 and "_DEPCACHE_COMPLETE" in shown.stdout


def test_status_without_a_server_is_exit_code_3(call):
    code, _, err = call("status", "--server", "http://127.0.0.1:9")
    assert code == 3
    assert err.startswith("depcache: http://127.0.0.1:9/depcache/status cannot be reached")


@pytest.mark.parametrize(
    "text",
    ['[["a", "r", "b"], ["c"]]', '["a", "r", "b"]\n\n["c"]\n', "a\tr\tb\nc\n"],
)
def test_explain_reads_paths_in_three_shapes(call, server, tmp_path, text):
    file = tmp_path / "paths"
    file.write_text(text)
    code, out, _ = call("explain", "Where?", "--paths", file, "--layout", "staggered")
    params = server.body["custom_params"]
    assert code == 0
    assert paths_of(server.body) == [("a", "r", "b"), ("c",)]
    assert params["depcache_layout"] == "staggered"
    assert "missed 5" in out
    assert r"\na[b]" in out


def test_explain_sends_a_body_as_it_is(call, server, tmp_path):
    file = tmp_path / "body.json"
    file.write_text('{"text": "x"}')
    code, out, _ = call("explain", "--body", file, "--json")
    assert code == 0
    assert server.body == {"text": "x"}
    assert json.loads(out)["table"] == TABLE


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--paths", ""),
        ("--paths", "[[1]]"),
        ("--paths", "[broken"),
        ("--paths", '[["a"], [""]]'),
        ("--body", "[]"),
        ("--body", "broken"),
        ("--body", None),
    ],
)
def test_explain_refuses_files_that_hold_nothing_to_explain(call, server, tmp_path, option, text):
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    code, out, err = call("explain", option, file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert server.requests == []


def test_explain_wants_either_paths_or_a_body(call, server):
    assert call("explain", "Where?")[0] == 2


def test_names_in_a_file_of_paths_may_hold_what_ends_a_line_elsewhere():
    odd = "a\u2028b\x85c"
    assert inspect.read_paths_file(f'["{odd}", "r", "x"]\n["y"]\n') == [[odd, "r", "x"], ["y"]]
    assert inspect.read_paths_file(f"{odd}\tr\tx\r\ny\n") == [[odd, "r", "x"], ["y"]]
