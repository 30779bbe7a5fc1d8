# SPDX-License-Identifier: Apache-2.0
"""The metrics on a real server's /metrics: each says what the replies and the stats say."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_patches.observe.metrics import (
    SOURCES,
    NullMetrics,
    PrometheusMetrics,
    make_metrics,
)
from sglang_patches.requests.state import POOL_TOO_SMALL
from sglang_patches.version import installed_version
from tests.helpers.ends import SLOWEST_S
from tests.helpers.server import start_server
from tests.sglang_patches.conftest import ADMIN_KEY, Served

pytestmark = pytest.mark.sglang

REPOSITORY = Path(__file__).parents[3]
POOL_TOKENS = 700
_fresh = count()
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "log.txt"


@pytest.fixture(scope="module")
def measured(model_path: Callable[[str], Path], log: Path) -> Iterator[Served]:
    """A small pool with host memory below it, so that things move between the two."""
    from transformers import AutoTokenizer

    model = model_path("llama_gqa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPCACHE_HOST_GB", "0.003")
        with start_server(
            model,
            "--enable-metrics",
            *("--max-total-tokens", str(POOL_TOKENS)),
            *("--served-model-name", "tiny"),
            *("--log-level", "debug"),
            *("--log-level-http", "warning"),
            *("--admin-api-key", ADMIN_KEY),
            log=log,
        ) as client:
            yield Served(client, AutoTokenizer.from_pretrained(model))


def paths(number: int | None = None) -> list[list[str]]:
    name = f"Person {next(_fresh) if number is None else number}"
    return [[name, "founded", "Tesla", "makes", "Model S"], ["Paris", "capital of", name]]


def ask(served: Served, facts: list[list[str]], num_new: int = 2, **keywords: Any) -> Any:
    """The report of a dependency request."""
    ids, params = served.prompt(facts, **keywords).to_wire()
    sampling = {"max_new_tokens": num_new, "custom_params": params}
    reply = served.post("/generate", {"input_ids": ids, "sampling_params": sampling})
    assert reply.status_code == 200, reply.text
    return reply.json()["meta_info"]["depcache"]


def read(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of ours: (name, labels but the common ones) -> value."""
    samples = {}
    for line in served.client.get("/metrics").text.splitlines():
        found = _SAMPLE.match(line)
        if not found or not found[1].startswith("depcache:"):
            continue
        labels = dict(_LABEL.findall(found[2] or ""))
        assert labels.pop("model_name") == "tiny"
        if not found[1].startswith("depcache:rejected"):
            assert labels.pop("tp_rank") == "0"
        key = (found[1], frozenset(labels.items()))
        assert key not in samples, f"{line} stands there twice"
        samples[key] = float(found[3])
    return samples


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    return samples[f"depcache:{name}", frozenset(labels.items())]


def grown(before: dict[Any, float], after: dict[Any, float]) -> dict[str, float]:
    """What has changed but times: `name{label="value"}` -> by how much."""
    result = {}
    for (name, labels), now in after.items():
        by = now - before.get((name, labels), 0)
        if by and not name.startswith("depcache:plan_seconds"):
            inner = ",".join(f"{key}={text}" for key, text in sorted(labels) if text)
            result[f"{name.removeprefix('depcache:')}{{{inner}}}"] = by
    return result


def of_gauges(samples: dict[str, float]) -> dict[str, float]:
    return {name: by for name, by in samples.items() if not name.startswith("resident")}


def test_a_cold_and_a_warm_request_move_what_their_reports_say(measured: Served) -> None:
    facts = paths()
    start = read(measured)
    cold = ask(measured, facts)
    middle = read(measured)
    warm = ask(measured, facts)
    end = read(measured)
    assert cold["missed"] > 0
    assert warm["shared"] == warm["context_tokens"]
    for before, after, report in ((start, middle, cold), (middle, end, warm)):
        assert of_gauges(grown(before, after)) == {
            "requests_total{mode=dependency}": 1,
            **{
                f"prompt_tokens_total{{source={name}}}": report[name]
                for name in SOURCES
                if report[name]
            },
        }
    cached = value(middle, "resident_tokens", tier="device") - value(
        start, "resident_tokens", tier="device"
    )
    assert cached == cold["missed"]
    assert value(end, "plan_seconds_count") - value(start, "plan_seconds_count") == 2
    assert 0 < value(end, "plan_seconds_sum") - value(start, "plan_seconds_sum") < 1


def test_a_plain_request_is_counted_and_none_of_its_tokens(measured: Served) -> None:
    before = read(measured)
    body = {"text": "plain text", "sampling_params": {"max_new_tokens": 2}}
    assert measured.post("/generate", body).status_code == 200
    assert of_gauges(grown(before, read(measured))) == {"requests_total{mode=plain}": 1}


def test_rejected_requests_are_counted_by_the_process_that_refuses_them(measured: Served) -> None:
    ids, params = measured.prompt(paths()).to_wire()
    bad = {**params, "depcache_system_len": -1}
    generate = {"input_ids": ids, "sampling_params": {"custom_params": bad}}
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    chat["custom_params"] = {"depcache_version": 1, "depcache_paths": "[[]]"}
    before = read(measured)
    for number, (path, body) in enumerate(
        [("/generate", generate), ("/v1/chat/completions", chat)], start=1
    ):
        assert measured.post(path, body).status_code == 400
        assert grown(before, read(measured)) == {"rejected_requests_total{}": number}
        assert measured.post("/depcache/explain", body).status_code == 400
        assert grown(before, read(measured)) == {"rejected_requests_total{}": number}
    stats = measured.client.get("/depcache/stats").json()
    assert stats["requests"]["rejected_requests"] == value(
        read(measured), "rejected_requests_total"
    )


def test_the_reason_of_less_reuse_is_one_word(measured: Served) -> None:
    many = [["Ada", f"wrote {number}", f"Book {number}"] for number in range(12)]
    others = [["Bob", "read", "Book 1"]]
    ask(measured, [*many, *others], layout="staggered")
    before = read(measured)
    report = ask(measured, [*others, *many], num_new=500, layout="staggered")
    assert report["fallback_reason"] == POOL_TOO_SMALL, report
    moved = grown(before, read(measured))
    assert moved["requests_total{mode=dependency,reason=pool_too_small}"] == 1


def test_tiers_are_measured_as_the_stats_tell_them_and_counters_never_fall(
    measured: Served,
) -> None:
    seen = [read(measured)]
    reports = Counter[str]()
    for number in [*range(1000, 1080), *range(1000, 1030), *range(2000, 2120)]:
        reports.update({k: v for k, v in ask(measured, paths(number)).items() if k in SOURCES})
        if number % 10 == 9:
            seen.append(read(measured))
    moved = grown(seen[0], seen[-1])
    assert {name: moved.get(f"prompt_tokens_total{{source={name}}}", 0) for name in SOURCES} == {
        name: reports[name] for name in SOURCES
    }
    assert moved["loaded_tokens_total{tier=host}"] == reports["loaded"] > 0

    tiers = measured.client.get("/depcache/stats").json()["tiers"]
    last = read(measured)
    names = {
        "resident_nodes": "nodes",
        "resident_tokens": "tokens",
        "resident_bytes": "bytes",
        "capacity_bytes": "capacity_bytes",
        "evicted_tokens_total": "evicted",
        "evicted_nodes_total": "evicted_nodes",
    }
    for tier in ("device", "host"):
        for name, key in names.items():
            assert value(last, name, tier=tier) == tiers[tier][key] > 0
        # In seconds: what this module put there was evicted while this test ran, within a day.
        assert 0 <= tiers[tier]["age"]["last_s"] < 86_400
        assert 0 <= tiers[tier]["age"]["mean_s"] < 86_400
    for reason, number in tiers["host"]["dropped_nodes"].items():
        assert value(last, "tier_dropped_total", tier="host", reason=reason) == number

    measured.client.post(
        f"/depcache/flush?timeout={SLOWEST_S}", headers={"Authorization": f"Bearer {ADMIN_KEY}"}
    )
    seen.append(read(measured))
    assert value(seen[-1], "resident_tokens", tier="device") == 0
    assert value(seen[-1], "resident_nodes", tier="host") == 0
    ask(measured, paths())
    seen.append(read(measured))
    for before, after in pairwise(seen):
        for (name, labels), earlier in before.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert after[name, labels] >= earlier


def test_every_metric_stands_there_once_beside_sglangs_own(measured: Served) -> None:
    ask(measured, paths())
    text = measured.client.get("/metrics").text
    declared = Counter(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    assert max(declared.values()) == 1
    assert any(name.startswith("sglang:") for name in declared)
    samples = Counter(line.rsplit(" ", 1)[0] for line in text.splitlines() if line[0] != "#")
    assert [name for name, times in samples.items() if times > 1] == []
    built = [dict(labels) for name, labels in read(measured) if name == "depcache:build_info"]
    assert [labels["sglang_version"] for labels in built] == [installed_version()]


def listed_metrics() -> dict[str, set[str]]:
    """The table of docs/operate/metrics.md: name -> labels."""
    page = (REPOSITORY / "docs/operate/metrics.md").read_text(encoding="utf-8")
    listed: dict[str, set[str]] = {}
    for cell in re.findall(r"^\| `depcache:(\w+(?:\{[\w,]+\})?)` \|", page, re.MULTILINE):
        name, _, labels = cell.partition("{")
        listed[name] = set(labels.rstrip("}").split(",")) - {""}
    return listed


def test_the_docs_list_what_there_is(measured: Served) -> None:
    ask(measured, paths())
    listed = listed_metrics()
    exported: dict[str, set[str]] = {}
    for name, labels in read(measured):
        name = re.sub(r"(?<=plan_seconds)_(bucket|sum|count)$", "", name.removeprefix("depcache:"))
        exported[name] = {key for key, _ in labels if key != "le"}
    # Nothing can fail or be on its way without a disk tier.
    assert listed.pop("tier_failures_total") == {"tier", "reason"}
    exported.pop("tier_failures_total", None)
    for name in ("fetch_seconds_total", "wait_seconds_total"):
        assert listed.pop(name) == {"tier"} and name not in exported
    assert listed == exported


def test_dashboard_and_alerts_ask_for_what_there_is(measured: Served) -> None:
    ask(measured, paths())
    exported = set(re.findall(r"^([a-z]+:\w+)", measured.client.get("/metrics").text, re.MULTILINE))
    deploy = REPOSITORY / "deploy"
    board = json.loads((deploy / "grafana.json").read_text(encoding="utf-8"))
    text = json.dumps(board["panels"]) + (deploy / "prometheus/alerts.yml").read_text("utf-8")
    asked = set(re.findall(r"\b(?:depcache|sglang):\w+", text))
    assert len(asked) > 10
    # Nothing can fail without a disk tier.
    assert asked - exported <= {"depcache:tier_failures_total"}


def test_the_dashboard_begins_with_headlines_and_says_what_each_panel_shows() -> None:
    board = json.loads((REPOSITORY / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert all(panel["description"].endswith(".") for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    (top,) = {panel["gridPos"]["y"] for panel in panels if panel["type"] == "stat"}
    assert top == min(panel["gridPos"]["y"] for panel in panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_a_request_is_one_line_in_the_debug_log(measured: Served, log: Path) -> None:
    ids, params = measured.prompt(paths()).to_wire()
    sampling = {"max_new_tokens": 1, "custom_params": params}
    body = {"input_ids": ids, "sampling_params": sampling, "rid": "the-request"}
    report = measured.post("/generate", body).json()["meta_info"]["depcache"]
    deadline = time.monotonic() + SLOWEST_S
    while True:
        lines = [line for line in log.read_text().splitlines() if "rid=the-request layout" in line]
        if lines or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    (line,) = lines
    told = dict(word.split("=") for word in line[line.index("rid=") :].split())
    assert {name: int(told[name]) for name in SOURCES} == {name: report[name] for name in SOURCES}
    assert float(told["plan_ms"]) > 0


def make_recorder(tiers: dict[str, Any], counters: dict[str, int]) -> tuple[Any, Any]:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    labels = {"model_name": "m", "tp_rank": "0"}
    metrics = PrometheusMetrics(
        labels, {"model_name": "m"}, lambda: tiers, lambda: counters, registry=registry
    )

    def get(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"depcache:{name}", {**labels, **more})

    return metrics, get


def test_a_tier_has_the_metrics_that_its_description_has() -> None:
    counters = {"plain_requests": 0, "rejected_requests": 0}
    disk = {"bytes": 5, "evicted": 7, "failures": {"timeout": 2}, "dropped_nodes": {}}
    disk |= {"fetch_seconds": 1.5, "wait_seconds": 0.25}
    metrics, get = make_recorder({"disk": disk}, counters)
    assert get("resident_bytes", tier="disk") == 5
    assert get("tier_failures_total", tier="disk", reason="timeout") == 2
    assert get("fetch_seconds_total", tier="disk") == 1.5
    assert get("wait_seconds_total", tier="disk") == 0.25
    assert get("resident_nodes", tier="disk") is None
    disk.update(bytes=1, evicted=9)
    disk["failures"] = {"timeout": 3, "error": 1}
    counters["plain_requests"] = 4
    metrics.publish()
    assert get("resident_bytes", tier="disk") == 1
    assert get("evicted_tokens_total", tier="disk") == 9
    assert get("tier_failures_total", tier="disk", reason="timeout") == 3
    assert get("tier_failures_total", tier="disk", reason="error") == 1
    assert get("requests_total", mode="plain", reason="") == 4


def test_a_source_that_begins_anew_does_not_lower_a_counter() -> None:
    tier = {"evicted": 10}
    metrics, get = make_recorder({"host": tier}, {"plain_requests": 0, "rejected_requests": 0})
    for now, total in ((3, 10), (5, 12)):
        tier["evicted"] = now
        metrics.publish()
        assert get("evicted_tokens_total", tier="host") == total


def test_an_unknown_reason_is_no_label() -> None:
    metrics, get = make_recorder({}, {"plain_requests": 0, "rejected_requests": 0})
    report = {**dict.fromkeys(SOURCES, 0), "fallback_reason": "tenant 'x' has too many rows"}
    metrics.note_request({**report, "plain": 5, "tail": 2}, 0.0003)
    assert get("tail_tokens_total") == 2
    assert get("requests_total", mode="dependency", reason="other") == 1
    assert get("plan_seconds_bucket", le="0.0002") == 0
    assert get("plan_seconds_bucket", le="0.0005") == 1


@pytest.mark.parametrize(("is_enabled", "tp_rank"), [(False, 0), (True, 1)])
def test_servers_without_metrics_and_further_ranks_write_none(
    is_enabled: bool, tp_rank: int
) -> None:
    context = SimpleNamespace(
        server_args=SimpleNamespace(enable_metrics_for_all_schedulers=False),
        params=SimpleNamespace(enable_metrics=is_enabled),
        tp_rank=tp_rank,
    )
    assert type(make_metrics(context, cache=None)) is NullMetrics
