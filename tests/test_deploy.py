# SPDX-License-Identifier: Apache-2.0
"""compose.yaml and deploy/: what they name is there, and their queries ask for what is exported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import depcache

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
# What Prometheus and SGLang put on every series.
COMMON_LABELS = {"model_name", "tp_rank", "dp_rank", "instance", "job", "le"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


SERVICES = load(ROOT / "compose.yaml")["services"]


def documented() -> dict[str, set[str]]:
    """The table of docs/operate/metrics.md, which a test holds against a real server."""
    page = (ROOT / "docs/operate/metrics.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `(depcache:\w+)(?:\{([\w,]+)\})?` \|", page, re.MULTILINE)
    return {name: set(labels.split(",")) - {""} for name, labels in cells}


def expressions() -> list[str]:
    """Every query of the dashboard and of the alerts."""
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = load(DEPLOY / "prometheus/alerts.yml")["groups"][0]["rules"]
    return queries + [rule["expr"] for rule in rules]


def mounts(service: str) -> dict[str, str]:
    """Path inside the container -> path here, or name of a volume."""
    pairs = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {parts[1]: parts[0] for parts in pairs}


def promtool(*arguments: str, folder: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here (Debian: prometheus)")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_pinned_watched_and_for_this_machine_only() -> None:
    assert set(SERVICES) == {"server", "falkordb", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert SERVICES["server"]["image"] == f"depcache:{depcache.__version__}"


def test_what_is_mounted_is_there() -> None:
    volumes = set(load(ROOT / "compose.yaml")["volumes"])
    used = {source for name in SERVICES for source in mounts(name).values()}
    assert {source for source in used if not source.startswith("./")} == volumes
    assert all((ROOT / source).exists() for source in used if source.startswith("./"))


def test_the_dockerfile_and_compose_ask_for_health_in_the_same_way() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    command = re.search(r"HEALTHCHECK .*\\\n +CMD (\[.*\])", text)
    assert command is not None
    assert SERVICES["server"]["healthcheck"]["test"] == ["CMD", *json.loads(command[1])]


def test_prometheus_asks_the_server_and_finds_its_rules() -> None:
    config = load(DEPLOY / "prometheus/prometheus.yml")
    assert mounts("prometheus")["/etc/prometheus"] == "./deploy/prometheus"
    assert all((DEPLOY / "prometheus" / name).exists() for name in config["rule_files"])
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert SERVICES[host]["ports"][0].endswith(f":{port}")
    assert "--enable-metrics" in SERVICES[host]["command"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./deploy/grafana"
    (source,) = load(DEPLOY / "grafana/datasources/prometheus.yml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert source["type"] == host == "prometheus"
    assert SERVICES[host]["ports"][0].endswith(f":{port}")
    scraped = load(DEPLOY / "prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
    (provider,) = load(DEPLOY / "grafana/dashboards/depcache.yml")["providers"]
    inside = f"{provider['options']['path']}/depcache.json"
    assert mounts("grafana")[inside] == "./deploy/grafana.json"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == inside


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    known = documented()
    selectors = re.compile(r"(depcache:\w+)(?:\{([^}]*)\})?")
    found = [pair for text in expressions() for pair in selectors.findall(text)]
    assert len(found) > 20
    for name, inner in found:
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", inner))
        name = name.removesuffix("_bucket")
        assert name in known, name
        assert labels <= known[name] | COMMON_LABELS, (name, labels)


def test_docker_compose_reads_the_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("docker compose is not here")
    done = subprocess.run(
        [docker, "compose", "config", "--quiet"],
        cwd=ROOT,
        env={**os.environ, "MODEL": "depcache-tiny"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_reads_its_files() -> None:
    promtool("check", "config", "prometheus.yml", folder=DEPLOY / "prometheus")


ALERTS = [
    ("DepCacheServerDown", {'up{job="depcache", instance="s"}': "0x90"}, {"severity": "critical"}),
    ("DepCacheNotInstalled", {'up{job="depcache", instance="s"}': "1x90"}, {"job": "depcache"}),
    (
        "DepCacheLittleReuse",
        {
            'depcache:prompt_tokens_total{source="shared", instance="s"}': "0+5x90",
            'depcache:prompt_tokens_total{source="missed", instance="s"}': "0+95x90",
            'depcache:requests_total{mode="dependency", instance="s"}': "0+10x90",
        },
        {},
    ),
    (
        "DepCacheRefusesRequests",
        {'depcache:rejected_requests_total{instance="s"}': "0+30x90"},
        {},
    ),
    (
        "DepCacheDiskFails",
        {'depcache:tier_failures_total{tier="disk", reason="timeout", instance="s"}': "0+1x90"},
        {"reason": "timeout"},
    ),
]


@pytest.mark.parametrize(("alert", "series", "labels"), ALERTS, ids=[name for name, *_ in ALERTS])
def test_an_alert_is_raised_when_there_is_reason_and_not_before(
    alert: str, series: dict[str, str], labels: dict[str, str], tmp_path: Path
) -> None:
    fires = {"exp_labels": {"severity": "warning", "instance": "s", **labels}}
    if alert == "DepCacheServerDown":
        fires["exp_labels"]["job"] = "depcache"
    rules = load(DEPLOY / "prometheus/alerts.yml")
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # their words are not the subject
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "alert_rule_test": [
            {"eval_time": "1m", "alertname": alert, "exp_alerts": []},
            {"eval_time": "80m", "alertname": alert, "exp_alerts": [fires]},
        ],
    }
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": [case]})
    )
    promtool("test", "rules", "test.yml", folder=tmp_path)


def test_rules_and_cases_are_the_same() -> None:
    rules = load(DEPLOY / "prometheus/alerts.yml")["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [name for name, *_ in ALERTS]
