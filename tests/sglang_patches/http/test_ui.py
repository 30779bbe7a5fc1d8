# SPDX-License-Identifier: Apache-2.0
"""The routes of the page: its files for everybody, the prompts for the admin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_patches.http.ui import FOLDER, HEADERS
from tests.sglang_patches.conftest import ADMIN_KEY
from tests.sglang_patches.http.test_routes import chat, fresh_paths

pytestmark = pytest.mark.sglang

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
FILES = sorted(path.name for path in FOLDER.iterdir())
PAGES = ["ui", *(f"ui/{name}" for name in FILES)]


def watch(served, after: int = 0):
    return served.client.post("/depcache/ui/watch", params={"after": after}, headers=ADMIN)


@pytest.mark.parametrize("page", PAGES)
def test_a_file_is_served_without_a_key_and_with_strict_headers(served, page: str) -> None:
    response = served.client.get(f"/depcache/{page}")
    assert response.status_code == 200
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    kind = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    name = page.removeprefix("ui").strip("/") or "index.html"
    suffix = name.rpartition(".")[2]
    assert response.headers["Content-Type"].startswith(kind.get(suffix, "text/html"))
    assert response.content == (FOLDER / name).read_bytes()


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Fui.py", "%2e%2e/ui.py", "../routes.py", "x" * 999]
)
def test_no_other_file_can_be_had(served, name: str) -> None:
    assert served.client.get(f"/depcache/ui/{name}").status_code == 404


@pytest.mark.parametrize("route", ["watch", "forget"])
def test_prompts_are_for_the_admin(served, route: str) -> None:
    path = f"/depcache/ui/{route}"
    assert served.client.post(path).status_code == 401
    wrong = {"Authorization": "Bearer another-key"}
    assert served.client.post(path, headers=wrong).status_code == 401
    assert served.client.get(path, headers=ADMIN).status_code in (404, 405)


@pytest.mark.parametrize("route", ["watch", "forget"])
def test_a_page_of_another_site_is_told_nothing(served, route: str) -> None:
    headers = ADMIN | {"Sec-Fetch-Site": "cross-site"}
    response = served.client.post(f"/depcache/ui/{route}", headers=headers)
    assert response.status_code == 403
    assert "own page" in response.json()["message"]


def test_nothing_is_remembered_of_what_came_before_the_watch_or_after_it(served) -> None:
    served.client.post("/depcache/ui/forget", headers=ADMIN)
    report = served.post("/v1/chat/completions", chat(fresh_paths())).json()["metadata"]["depcache"]
    assert "trace" not in report
    first = watch(served).json()
    assert first["prompts"] == [] and first["compared"]["prompts"] == 0
    report = served.post("/v1/chat/completions", chat(fresh_paths())).json()["metadata"]["depcache"]
    assert "trace" not in report
    assert [prompt["number"] for prompt in watch(served).json()["prompts"]] == [1]
    served.client.post("/depcache/ui/forget", headers=ADMIN)
    served.post("/v1/chat/completions", chat(fresh_paths()))
    again = watch(served).json()
    assert again["prompts"] == [] and again["watch"] != first["watch"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_told_as_it_was_reported(served, stream: bool) -> None:
    after = watch(served).json()["number"]
    paths = fresh_paths()
    served.post("/v1/chat/completions", chat(paths))
    body = chat(paths[::-1], stream=stream)
    served.post("/v1/chat/completions", body)
    cold, warm = watch(served, after).json()["prompts"]
    explained = served.post("/depcache/explain", body).json()
    for name in ("system", "task", "trees", "segments", "context_tokens", "plain"):
        assert warm[name] == explained[name]
    assert warm["table"] == explained["table"]
    assert warm["missed"] == 0 < cold["missed"]
    names = ("shared", "shifted", "loaded", "missed")
    for prompt in (cold, warm):
        rows = [prompt["system"], *prompt["table"]]
        for name in names:
            assert sum(row[name] for row in rows) == prompt[name]
        assert prompt["ttft_ms"] > 0
    # The flat prompt begins with another fact, so a plain cache has the system of it alone.
    assert warm["compared"]["computed"] == warm["plain"]
    plain = warm["compared"]["plain_computed"]
    assert warm["compared"]["computed"] < plain < warm["compared"]["flat_tokens"]


def test_the_flat_prompt_is_nearly_as_long_as_the_one_a_plain_server_gets(served) -> None:
    after = watch(served).json()["number"]
    body = chat(fresh_paths())
    served.post("/v1/chat/completions", body)
    (prompt,) = watch(served, after).json()["prompts"]
    del body["custom_params"]
    plain = served.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
    # One newline a fact is left out, and tokens may join where facts meet.
    assert plain - 2 * len(fresh_paths()) <= prompt["compared"]["flat_tokens"] <= plain


def test_the_page_brings_all_that_it_needs() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|url\(|@import|innerHTML|insertAdjacentHTML|eval\(", text), (
            path
        )
        for name in re.findall(r"(?:src|href)=\"ui/([\w.]+)\"|from \"\./([\w.]+)\"", text):
            assert (FOLDER / "".join(name)).exists()
        assert len(text.splitlines()) <= 400
        if path.suffix in (".js", ".css", ".html"):
            assert "SPDX-License-Identifier: Apache-2.0" in text


def test_the_page_is_small() -> None:
    assert sum(Path(path).stat().st_size for path in FOLDER.iterdir()) < 100_000
