# SPDX-License-Identifier: Apache-2.0
"""The doctor names what is missing and what to do; only then it exits with 1."""

import json
import re
import subprocess
from importlib.metadata import requires

import httpx
import pytest

from depcache import gpu_checks
from depcache.cli import doctor
from depcache.cli.doctor import Check, check_seams, check_server, inspect_plugin, is_healthy

REPORT = {
    "sglang_version": "0.5.17",
    "supported_versions": ["0.5.17"],
    "seams": {"a": True},
    "hooks": {"b": True, "c": True},
    "problems": [],
}


def states(checks):
    return [check.state for check in checks]


def test_all_seams_and_hooks_in_place_are_two_good_lines():
    assert states(check_seams(REPORT)) == ["ok", "ok"]


def test_a_missing_hook_is_a_problem_that_is_named():
    checks = check_seams({**REPORT, "hooks": {"b": True, "c": False}})
    assert states(checks) == ["ok", "problem"]
    assert checks[1].detail == "missing: c"
    assert checks[1].advice


def test_a_report_with_nothing_in_it_is_a_problem():
    assert states(check_seams({})) == ["problem", "problem"]


def test_problems_of_the_plugin_are_passed_on():
    checks = check_seams({**REPORT, "problems": ["sglang 0.5.18 is installed"]})
    assert checks[-1] == Check("plugin", "problem", "sglang 0.5.18 is installed", checks[-1].advice)


def running(stdout="", stderr="", code=0):
    return lambda command, **options: subprocess.CompletedProcess(command, code, stdout, stderr)


def test_the_report_is_found_behind_what_sglang_prints():
    assert inspect_plugin(running('{odd\nhello\n{"seams": {}}\nbye\n')) == {"seams": {}}


def test_a_check_that_dies_is_one_problem_with_its_last_line():
    report = inspect_plugin(running(stderr="Traceback\nImportError: no torch\n\n", code=1))
    assert "ImportError: no torch" in report
    assert states(check_seams(report)) == ["problem"]


def test_a_check_that_hangs_is_one_problem():
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, 1)

    assert states(check_seams(inspect_plugin(hang))) == ["problem"]


def test_notes_are_no_problems():
    assert is_healthy([Check("a", "ok", ""), Check("b", "note", "")])
    assert not is_healthy([Check("a", "ok", ""), Check("b", "problem", "")])


@pytest.mark.parametrize(
    ("passed", "is_said"),
    [((), True), ((1, 2), True), (range(1, gpu_checks.NUM_CHECKS + 1), False)],
)
def test_on_a_gpu_it_says_which_checks_have_not_passed_yet(monkeypatch, passed, is_said):
    monkeypatch.setattr(gpu_checks, "PASSED", frozenset(passed))
    monkeypatch.setattr(doctor, "find_gpu", lambda: True)
    without_sglang(monkeypatch)
    checks = doctor.run_checks()
    found = [check for check in checks if "eval/gpu/CHECKS.md" in check.detail]
    assert states(found) == ["note"] * is_said
    monkeypatch.setattr(doctor, "find_gpu", lambda: False)
    assert not [check for check in doctor.run_checks() if "CHECKS.md" in check.detail]


def without_sglang(monkeypatch):
    real = doctor.installed_version
    monkeypatch.setattr(
        doctor,
        "installed_version",
        lambda name: None if name in doctor.SERVER_PACKAGES else real(name),
    )


def test_without_sglang_a_machine_cannot_serve(monkeypatch):
    without_sglang(monkeypatch)
    checks = doctor.run_checks()
    assert [check.name for check in checks if check.state == "problem"] == [
        "sglang",
        "torch",
        "transformers",
    ]
    advices = [check.advice for check in checks if check.state != "ok"]
    assert all("pip install 'depcache[server]'" in advice for advice in advices)


def test_nothing_is_imported_where_that_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(doctor, "inspect_plugin", pytest.fail)
    real = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: real(name) or "1")
    for options in ({"is_quick": True}, {"server_url": "http://127.0.0.1:9"}, {"is_client": True}):
        names = [check.name for check in doctor.run_checks(**options)]
        assert "hooks" not in names and "httpx" in names


def test_a_client_needs_the_packages_of_the_base_install_and_no_settings(monkeypatch):
    real = doctor.installed_version
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: None if name == "httpx" else real(name)
    )
    monkeypatch.setenv("DEPCACHE_ATTENTION_PLAN", "magic")
    checks = doctor.run_checks(is_client=True)
    assert [check.name for check in checks if check.state == "problem"] == ["httpx"]


def test_the_packages_of_a_client_are_those_that_the_base_install_requires():
    required = [line for line in requires("depcache") or () if "extra ==" not in line]
    names = {re.split(r"[^\w-]", line)[0] for line in required}
    assert set(doctor.CLIENT_PACKAGES) == {"depcache", *names}


def test_a_wrong_setting_is_a_problem(monkeypatch):
    without_sglang(monkeypatch)
    monkeypatch.setenv("DEPCACHE_ATTENTION_PLAN", "magic")
    [check] = [check for check in doctor.run_checks() if check.name == "settings"]
    assert check.state == "problem"
    assert "magic" in check.detail


def serving(monkeypatch, status, code=200, *, reads=True, models=("default",), chat=200):
    """A server or a proxy: what /depcache/status answers, and whether chats have a report."""

    def answer(request):
        path = request.url.path
        if path == "/depcache/status":
            return httpx.Response(code, json=status)
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": name} for name in models]})
        if chat != 200:
            return httpx.Response(chat, json={"message": "no chat template"})
        body = json.loads(request.content)
        assert body["model"] == models[0]
        assert "depcache_outline" in body["custom_params"]
        choice = {"message": {"content": "x"}, "finish_reason": "length"}
        told = {"depcache": {"layout": "tree"}} if reads else None
        return httpx.Response(200, json={"choices": [choice], "metadata": told})

    real = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **options: real(transport=httpx.MockTransport(answer))
    )


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ({"active": True, "seams": {"a": True}, "version": "1"}, "ok", "depcache 1"),
        ({"active": False}, "problem", "without DepCache"),
        ({"active": True, "hooks": {"x": False}}, "problem", "misses x"),
    ],
)
def test_a_server_is_judged_by_its_status(monkeypatch, status, state, words):
    serving(monkeypatch, status)
    [check] = check_server("http://test")
    assert check.state == state
    assert words in check.detail


def test_a_stock_server_is_a_problem(monkeypatch):
    serving(monkeypatch, {"detail": "Not Found"}, 404, reads=False)
    [check] = check_server("http://test")
    assert check.state == "problem"
    assert "custom_params get lost" in check.detail


def test_a_proxy_that_drops_custom_params_is_a_problem(monkeypatch):
    serving(monkeypatch, {"active": True}, reads=False)
    server, proxy = check_server("http://test")
    assert (server.state, proxy.state) == ("ok", "problem")
    assert "custom_params get lost" in proxy.detail
    assert "SMG" in proxy.advice


def test_a_server_that_takes_no_chat_is_well(monkeypatch):
    serving(monkeypatch, {"active": True}, chat=400)
    server, proxy = check_server("http://test")
    assert (server.state, proxy.state) == ("ok", "note")
    assert "no chat template" in proxy.detail


def test_a_server_whose_chats_fail_is_a_problem(monkeypatch):
    serving(monkeypatch, {"active": True}, chat=500)
    (server,) = check_server("http://test")
    assert server.state == "problem"


@pytest.mark.parametrize("code", [404, 405])
def test_a_router_stands_for_the_servers_behind_it(monkeypatch, code):
    serving(monkeypatch, {"error": "no route"}, code, models=["llama", "other"])
    [check] = check_server("http://test/v1")
    assert check.state == "ok"
    assert "a router before servers with DepCache" in check.detail


def test_a_client_machine_is_judged_by_its_server(monkeypatch):
    without_sglang(monkeypatch)
    serving(monkeypatch, {"active": True})
    assert is_healthy(doctor.run_checks("http://test"))


def test_the_report_for_programs_has_a_verdict():
    checks = [Check("a", "problem", "b", "c")]
    assert doctor.to_json(checks) == {
        "ok": False,
        "checks": [{"name": "a", "state": "problem", "detail": "b", "advice": "c"}],
    }
