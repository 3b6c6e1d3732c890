"""Protects `make kind` as far as a machine without Docker can: what is missing is said with its remedy, what kind and docker
are told, that the mapped ports are those of the overlay, and that pods behind a proxy are scraped and told apart."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagefleet_local.base.preflight import Refused
from pagefleet_local.chart.source import MANIFESTS, kustomized
from pagefleet_local.demo.monitoring import targets
from pagefleet_local.fleet.access import Direct, NodePorts
from pagefleet_local.kind import plan
from pagefleet_local.kind.cluster import Kind

THERE = {"docker": True, "kind": True}


def test_nothing_is_missing_where_everything_is() -> None:
    assert plan.lacking(THERE, daemon=True, version=(3, 11), alerts=True) == []


@pytest.mark.parametrize(
    ("programs", "daemon", "version", "alerts", "message"),
    [
        ({"docker": False, "kind": True}, False, (3, 11), True, "docker is not on PATH"),
        (THERE, False, (3, 11), True, "docker does not answer"),
        ({"docker": True, "kind": False}, True, (3, 11), True, "kind is not on PATH"),
        (THERE, True, (3, 13), True, "Python 3.11 is needed, this one is 3.13"),
        (THERE, True, (3, 11), False, "leave the scene `alert` out"),
    ],
)
def test_what_is_missing_is_said(
    programs: dict[str, bool], daemon: bool, version: tuple[int, int], alerts: bool, message: str
) -> None:
    (problem,) = plan.lacking(programs, daemon=daemon, version=version, alerts=alerts)
    assert message in problem


def test_the_command_refuses_with_everything_that_is_missing(tmp_path: Path) -> None:
    """Without docker and kind on PATH: status 2, both named, nothing made."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "pagefleet-local"), "kind", "--only", "serve"],
        env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "docker is not on PATH" in done.stdout
    assert "kind is not on PATH" in done.stdout


def test_a_docker_that_does_not_answer_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, status in (("docker", 1), ("kind", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="docker does not answer") as refused:
        Kind().check(["serve"])
    assert "PATH" not in str(refused.value)


def test_an_unknown_scene_is_refused() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "pagefleet-local"), "kind", "--only", "serv"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "unknown scene: serv; the scenes are serve, mistakes" in done.stdout


def test_the_mapped_ports_are_the_overlay_s() -> None:
    services = {
        one["metadata"]["name"]: one["spec"]
        for one in kustomized(MANIFESTS / "overlays/kind")
        if one["kind"] == "Service"
    }
    ports = {
        name: [port["nodePort"] for port in spec["ports"] if port["name"] == "http"] for name, spec in services.items()
    }
    assert ports == {"pagefleet-gateway": [plan.GATEWAY[0]], "pagefleet-operator": [plan.OPERATOR[0]]}
    (node,) = plan.configuration()["nodes"]
    mapped = {entry["containerPort"]: entry["hostPort"] for entry in node["extraPortMappings"]}
    assert mapped == dict((plan.GATEWAY, plan.OPERATOR))
    assert {entry["listenAddress"] for entry in node["extraPortMappings"]} == {"127.0.0.1"}
    assert all(30000 <= port <= 32767 for port in mapped)


def test_the_commands() -> None:
    config, kubeconfig, context = Path("c.json"), Path("k"), Path("x")
    assert " ".join(plan.create(config, kubeconfig)) == (
        "kind create cluster --name pagefleet --config c.json --kubeconfig k --wait 180s"
    )
    assert " ".join(plan.delete(kubeconfig)) == "kind delete cluster --name pagefleet --kubeconfig k"
    built = plan.build("operator", context)
    assert built[:2] == ["docker", "build"]
    assert {"--target", "operator", "PIP_INDEX=--no-index", "x/Dockerfile"} <= set(built)
    assert plan.load(["operator", "gateway"])[3:5] == [
        built[built.index("--tag") + 1],
        built[built.index("--tag") + 1].replace("operator", "gateway"),
    ]
    assert "nvidia.com~1gpu" in plan.advertise()[-1]
    assert plan.NODE in plan.advertise()


def pod(name: str, component: str, address: str = "10.0.0.7") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": component, "pagefleet.io/service": "chat", "pagefleet.io/revision": "1"}
    return {"metadata": {"name": name, "namespace": "team-a", "labels": labels}, "status": {"podIP": address}}


def test_pods_on_this_machine_are_scraped_by_their_address() -> None:
    (one,) = targets([pod("chat-1-a", "pagefleet-engine"), pod("x", "other")], Direct())
    assert one["targets"] == ["10.0.0.7:8000"]
    assert one["labels"]["__metrics_path__"] == "/metrics"


def test_pods_behind_a_proxy_are_scraped_through_it_and_told_apart() -> None:
    access = NodePorts("127.0.0.1", gateway=1, operator=2)
    access.proxy = "127.0.0.1:8001"
    scraped = targets(
        [pod("a", "pagefleet-engine"), pod("b", "pagefleet-engine"), pod("g", "pagefleet-gateway")], access
    )
    assert {tuple(one["targets"]) for one in scraped} == {("127.0.0.1:8001",)}
    assert [one["labels"]["__metrics_path__"] for one in scraped] == [
        "/api/v1/namespaces/team-a/pods/a:8000/proxy/metrics",
        "/api/v1/namespaces/team-a/pods/b:8000/proxy/metrics",
        "/api/v1/namespaces/team-a/pods/g:9002/proxy/metrics",
    ]
    assert len({one["labels"]["instance"] for one in scraped}) == 3
