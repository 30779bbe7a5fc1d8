# SPDX-License-Identifier: Apache-2.0
"""New weights beside requests that are not done: the update waits or is refused (P6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server
from tests.sglang_patches.http.test_malformed import TOKENS, ids_form

pytestmark = pytest.mark.sglang

NUM_NEW = 3000  # more than are made while a client goes and an update comes


@pytest.fixture(scope="module")
def folder(model_path: Callable[[str], Path]) -> Path:
    return model_path("llama_gqa")


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    log = tmp_path_factory.mktemp("weights") / "server.log"
    with start_server(folder, log=log) as client:
        yield client


def body_of(custom_params: Any, num_new: int, **options: Any) -> dict[str, Any]:
    params = {"max_new_tokens": num_new, "temperature": 0, "ignore_eos": True}
    if custom_params is not None:
        params["custom_params"] = custom_params
    return {"input_ids": TOKENS, "sampling_params": params, **options}


@contextmanager
def streaming(client: Any, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """A request that runs: its first token has come."""
    with client.stream("POST", "/generate", json=body, timeout=SLOWEST_S) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def update(client: Any, folder: Path, **options: Any) -> Any:
    body = {"model_path": str(folder), **options}
    return client.post("/update_weights_from_disk", json=body, timeout=SLOWEST_S)


def answer(client: Any, custom_params: Any) -> list[int]:
    response = client.post("/generate", json=body_of(custom_params, 4), timeout=SLOWEST_S)
    assert response.status_code == 200, response.text
    return response.json()["output_ids"]


both = pytest.mark.parametrize("custom_params", [None, ids_form()], ids=["plain", "dependency"])


@both
def test_an_update_waits_for_a_request_whose_client_has_gone(
    client, folder: Path, custom_params: Any
) -> None:
    """SGLang took its lock back with the client, and asserted that nothing ran any more."""
    before = answer(client, custom_params)
    with streaming(client, body_of(custom_params, NUM_NEW, stream=True)):
        pass
    response = update(client, folder)
    assert (response.status_code, response.json()["success"]) == (200, True), response.text
    assert answer(client, custom_params) == before


@both
def test_an_update_waits_for_a_request_whose_client_stays(
    client, folder: Path, custom_params: Any
) -> None:
    replies: list[Any] = []
    thread = threading.Thread(target=lambda: replies.append(update(client, folder)))
    with streaming(client, body_of(custom_params, 200, stream=True)) as lines:
        thread.start()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    thread.join(SLOWEST_S)
    assert replies[0].json()["success"] is True


@pytest.mark.parametrize("mode", ["in_place", "retract"])
@both
def test_an_update_in_the_middle_of_paused_requests_is_refused(
    client, folder: Path, custom_params: Any, mode: str
) -> None:
    with streaming(client, body_of(custom_params, 600, stream=True)) as lines:
        client.post("/pause_generation", json={"mode": mode}).raise_for_status()
        try:
            refused = update(client, folder)
            kept = update(client, folder, flush_cache=False)
        finally:
            client.post("/continue_generation", json={}).raise_for_status()
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert refused.status_code == 400
    assert refused.json()["success"] is False
    assert "continue it first" in refused.json()["message"]
    assert kept.json()["success"] is True
    client.post("/flush_cache", params={"timeout": 60}).raise_for_status()
