# SPDX-License-Identifier: Apache-2.0
"""Every field of every route of ours with every kind of wrong value: an answer or a reason (P6)."""

from __future__ import annotations

import random

import httpx
import pytest

from depcache.prompt.wire import PREFIX
from eval.soak.fuzz import Case, Target, draw, make_targets, one_by_one, what_is_wrong
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.conftest import ADMIN_KEY, Served

pytestmark = pytest.mark.sglang

HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}", "Content-Type": "application/json"}
NUM_DRAWN = 300


@pytest.fixture(scope="module")
def targets(served: Served) -> list[Target]:
    return make_targets(served.client.get("/openapi.json").json())


def send(served: Served, case: Case) -> str | None:
    """What is wrong with the answer; AssertionError when there is none."""
    # uvicorn ends a connection that had an HTTP 500: one for each request, so that none meets it.
    headers = {**HEADERS, "Connection": "close"}
    try:
        reply = served.client.request(
            case.method, case.route, content=case.content, headers=headers, timeout=SLOWEST_S
        )
    except httpx.HTTPError as error:
        pytest.fail(f"no answer ({error!r}) to {case.name}: {(case.content or '')[:1000]}")
    if reply.status_code == 500 and PREFIX not in (case.content or PREFIX):
        return None  # a plain request, which stock SGLang answers in this way
    return what_is_wrong(reply.status_code, reply.text)


def check(served: Served, cases: list[Case]) -> None:
    wrong = {case.name: found for case in cases if (found := send(served, case))}
    assert not wrong, f"{len(wrong)} of {len(cases)}"
    cache = served.client.get("/depcache/status").json()["cache"]
    assert cache["free_tokens"] + cache["cached_tokens"] == cache["capacity_tokens"]


def routes() -> list[str]:
    return [
        *("/depcache/tree", "/depcache/flush", "/depcache/ui/watch"),
        *("/depcache/explain", "/depcache/prefetch", "/depcache/invalidate"),
        *("/generate", "/v1/completions", "/v1/chat/completions"),
    ]


@pytest.mark.parametrize("route", routes())
def test_a_field_of_the_wrong_type_is_answered_or_refused(
    served: Served, targets: list[Target], route: str
) -> None:
    check(served, list(one_by_one(target for target in targets if target.route == route)))


def test_every_target_is_in_a_test(targets: list[Target]) -> None:
    assert {target.route for target in targets} == set(routes())


def test_two_or_three_wrong_fields_are_answered_or_refused(
    served: Served, targets: list[Target]
) -> None:
    rng = random.Random(5)
    check(served, [draw(rng, targets) for _ in range(NUM_DRAWN)])
