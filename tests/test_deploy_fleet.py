# SPDX-License-Identifier: Apache-2.0
"""deploy/fleet and deploy/kubernetes: valid for their linters, and both say the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import depcache

ROOT = Path(__file__).parents[1]
FLEET = ROOT / "deploy/fleet"
KUBERNETES = ROOT / "deploy/kubernetes"
BIN = Path(sys.prefix) / "bin"

COMPOSE = yaml.safe_load((FLEET / "compose.yaml").read_text(encoding="utf-8"))
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))


def services() -> dict[str, dict[str, Any]]:
    """Those of compose, with what they take from compose.yaml."""
    found = {}
    for name, service in COMPOSE["services"].items():
        base = {}
        if "extends" in service:
            file = FLEET / service["extends"]["file"]
            base = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
            base = base[service["extends"]["service"]]
        found[name] = base | service
    return found


def manifests() -> list[dict[str, Any]]:
    """All objects that the kustomization names."""
    files = [KUBERNETES / name for name in KUSTOMIZATION["resources"]]
    assert sorted([*files, KUBERNETES / "kustomization.yaml"]) == sorted(KUBERNETES.iterdir())
    return [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] in kinds}


WORKLOADS = of_kind("Deployment", "StatefulSet")


def container(name: str) -> dict[str, Any]:
    (found,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    return found


def run(*command: str) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [ROOT / "compose.yaml", FLEET / "compose.yaml"])
def test_compose_files_are_valid_for_the_schema_of_compose(file: Path) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))


@pytest.mark.parametrize("name", KUSTOMIZATION["resources"])
def test_manifests_are_valid_for_the_schemas_of_kubernetes(name: str) -> None:
    run("kubernetes-validate", "--strict", str(KUBERNETES / name))


def test_what_the_kustomization_makes_is_whole_and_valid(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    command = [kubectl, "kustomize", str(KUBERNETES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "made.yaml"
    file.write_text(done.stdout, encoding="utf-8")
    run("kubernetes-validate", "--strict", str(file))

    made = list(yaml.safe_load_all(done.stdout))
    written = sorted((each["kind"], each["metadata"]["name"]) for each in manifests())
    found = sorted((each["kind"], each["metadata"]["name"]) for each in made)
    (model,) = [name for kind, name in found if name.startswith("model-")]
    assert found == sorted([*written, ("ConfigMap", model)])
    assert {each["metadata"].get("namespace", "depcache") for each in made} == {"depcache"}
    for each in made:
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod = each["spec"]["template"]["spec"]
        (only,) = pod["containers"]
        assert re.search(r":v?\d+\.\d+\.\d+$", only["image"])
        named = [source["configMapRef"]["name"] for source in only.get("envFrom", ())]
        named += [
            volume["configMap"]["name"]
            for volume in pod.get("volumes", ())
            if "configMap" in volume
        ]
        assert {("ConfigMap", name) for name in named} <= set(found)


def test_every_service_is_pinned_watched_and_for_this_machine_only() -> None:
    found = services()
    servers = {"server-one", "server-two"}
    assert set(found) == servers | {"router", "picker", "falkordb", "prometheus", "grafana"}
    ports = [port for service in found.values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    defaults = [re.findall(r":-(\d+)\}", port) for port in ports]
    assert len({tuple(each) for each in defaults}) == len(ports)
    for name, service in found.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["healthcheck"]["test"][0] == "CMD", name
    ours = {found[name]["image"] for name in (*servers, "picker")}
    assert ours == {f"depcache:{depcache.__version__}"}


def test_what_is_mounted_or_built_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            is_file = source.startswith(".")
            assert (FLEET / source).exists() if is_file else source in COMPOSE["volumes"], source
    assert (FLEET / COMPOSE["x-server"]["build"] / "Dockerfile").is_file()
    assert (FLEET / services()["router"]["build"]["dockerfile"]).is_file()


def test_prometheus_asks_both_servers_and_the_router() -> None:
    config = yaml.safe_load((FLEET / "prometheus.yml").read_text(encoding="utf-8"))
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]
    }
    assert jobs["depcache"] == ["server-one:30000", "server-two:30000"]
    router = services()["router"]["command"]
    assert jobs["router"] == [f"router:{router[router.index('--prometheus-port') + 1]}"]
    mounted = "".join(services()["prometheus"]["volumes"])
    assert all(f"/etc/prometheus/{name}" in mounted for name in config["rule_files"])


def test_the_router_is_the_one_that_was_measured_and_knows_the_servers() -> None:
    page = (ROOT / "docs/operate/several-servers.md").read_text(encoding="utf-8")
    version = re.findall(r"SMG (\d+\.\d+\.\d+)", page)
    dockerfile = (FLEET / "router.Dockerfile").read_text(encoding="utf-8")
    assert set(version) == set(re.findall(r"smg==([\d.]+)", dockerfile))
    command = services()["router"]["command"]
    at = command.index("--worker-urls")
    assert command[at + 1 :] == ["http://server-one:30000", "http://server-two:30000"]
    args = container("router")["args"]
    assert args[: at + 1] == command[: at + 1]
    servers = WORKLOADS["server"]["spec"]
    assert args[at + 1 :] == [
        f"http://server-{number}.{servers['serviceName']}:30000"
        for number in range(servers["replicas"])
    ]
    assert "consistent_hashing" in args


def test_the_picker_hears_the_servers_that_the_router_knows() -> None:
    router, picker = services()["router"]["command"], services()["picker"]
    urls = router[router.index("--worker-urls") + 1 :]
    assert picker["command"][-len(urls) :] == urls
    args = container("picker")["args"]
    assert args[-len(urls) :] == container("router")["args"][-len(urls) :]
    assert args[: -len(urls)] == picker["command"][: -len(urls)]
    assert picker["entrypoint"] == container("picker")["command"] == ["depcache", "picker"]
    (key,) = container("picker")["env"]
    assert [key["name"]] == list(picker["environment"]) == ["DEPCACHE_PICKER_KEY"]
    assert picker["environment"][key["name"]] == "${PICKER_KEY:-}"  # empty is none
    endpoint = COMPOSE["x-server"]["environment"]["DEPCACHE_ROOT_EVENTS"]
    given = {each["name"]: each.get("value") for each in container("server")["env"]}
    assert given["DEPCACHE_ROOT_EVENTS"] == endpoint
    ports = {port["containerPort"] for port in container("server")["ports"]}
    assert int(endpoint.rpartition(":")[2]) in ports


def test_servers_start_alike_in_both_and_with_flags_that_there_are() -> None:
    pytest.importorskip("sglang")
    from tests.helpers.arguments import server_arguments

    given = [re.sub(r"\$\{(\w+)\b.*\}", r"$(\1)", arg) for arg in COMPOSE["x-server"]["command"]]
    assert container("server")["args"] == given
    literals = dict(
        each.split("=", 1) for each in KUSTOMIZATION["configMapGenerator"][0]["literals"]
    )
    assert set(re.findall(r"\$\((\w+)\)", "".join(given))) == set(literals)
    known = {*server_arguments(), "host_gb", "disk_gb"}
    flags = {arg.removeprefix("--").replace("-", "_") for arg in given if arg.startswith("--")}
    assert flags <= known


def test_every_service_of_kubernetes_finds_its_pods_and_images_are_pinned() -> None:
    for name, service in of_kind("Service").items():
        labels = service["spec"]["selector"]
        pods = [
            each["spec"]["template"]
            for each in WORKLOADS.values()
            if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert len(pods) == 1, name
        (only,) = pods[0]["spec"]["containers"]
        assert {port["port"] for port in service["spec"]["ports"]} <= {
            port["containerPort"] for port in only["ports"]
        }
    tags = {each["name"]: each["newTag"] for each in KUSTOMIZATION["images"]}
    assert tags["depcache"] == depcache.__version__
    compose = {service["image"] for service in services().values()}
    for name in WORKLOADS:
        image = container(name)["image"]
        assert (f"{image}:{tags[image]}" if image in tags else image) in compose


def test_monitoring_asks_services_that_there_are() -> None:
    configs = of_kind("ConfigMap")
    prometheus = yaml.safe_load(configs["prometheus"]["data"]["prometheus.yml"])
    sources = yaml.safe_load(configs["grafana-sources"]["data"]["prometheus.yml"])
    named = re.findall(r"(?:http://)?([a-z-]+):\d+", json.dumps([prometheus, sources]))
    named += prometheus["scrape_configs"][0]["dns_sd_configs"][0]["names"]
    assert set(named) == {"servers", "router-metrics", "prometheus"}
    assert set(named) <= set(of_kind("Service"))
