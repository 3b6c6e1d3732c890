"""The configuration and the commands for docker and kind, as values. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagefleet_local.images.build import reference

CLUSTER = "pagefleet"
NODE = f"{CLUSTER}-control-plane"
# Ports of the node (manifests/overlays/kind) -> ports of this machine, on its loopback.
GATEWAY, OPERATOR = (30080, 18480), (30081, 18481)
ACCELERATOR, ACCELERATORS = "nvidia.com/gpu", 8
Command = list[str]


def configuration() -> dict[str, Any]:
    """kind's own: one node, whose two ports are reached from this machine only."""
    mappings = [
        {"containerPort": inside, "hostPort": outside, "listenAddress": "127.0.0.1", "protocol": "TCP"}
        for inside, outside in (GATEWAY, OPERATOR)
    ]
    node = {"role": "control-plane", "extraPortMappings": mappings}
    return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "name": CLUSTER, "nodes": [node]}


def create(configuration_file: Path, kubeconfig: Path) -> Command:
    config = ["--config", str(configuration_file), "--kubeconfig", str(kubeconfig)]
    return ["kind", "create", "cluster", "--name", CLUSTER, *config, "--wait", "180s"]


def delete(kubeconfig: Path) -> Command:
    return ["kind", "delete", "cluster", "--name", CLUSTER, "--kubeconfig", str(kubeconfig)]


def build(target: str, context: Path) -> Command:
    """From a context with every wheel in it; only the base image comes from a registry."""
    file = ["--file", str(context / "Dockerfile"), "--target", target, "--tag", reference(target)]
    return ["docker", "build", *file, "--build-arg", "PIP_INDEX=--no-index", str(context)]


def load(targets: Sequence[str]) -> Command:
    return ["kind", "load", "docker-image", *map(reference, targets), "--name", CLUSTER]


def advertise() -> Command:
    """The kubectl arguments that give the node accelerators, so that the sample's request is schedulable."""
    path = f"/status/capacity/{ACCELERATOR.replace('~', '~0').replace('/', '~1')}"
    patch = json.dumps([{"op": "add", "path": path, "value": str(ACCELERATORS)}])
    return ["patch", "node", NODE, "--subresource=status", "--type=json", "-p", patch]


def lacking(programs: dict[str, bool], *, daemon: bool, version: tuple[int, int], alerts: bool) -> list[str]:
    """What `make kind` lacks on this machine, with the fix. `programs`: whether each is on PATH; `alerts`: Prometheus and
    Alertmanager are available, or not needed."""
    missing = []
    if not programs["docker"]:
        missing.append(
            "docker is not on PATH: install Docker Engine (or Docker Desktop), or use `make demo`, which needs none"
        )
    elif not daemon:
        missing.append(
            "docker does not answer (`docker info` failed): start it, and let this user reach it (group docker)"
        )
    if not programs["kind"]:
        missing.append(
            'kind is not on PATH: see kind.sigs.k8s.io, "Installation" (`go install sigs.k8s.io/kind@latest`)'
        )
    if version != (3, 11):
        mine = ".".join(map(str, version))
        missing.append(f"Python 3.11 is needed, this one is {mine}: the images take the wheels that its pip downloads")
    if not alerts:
        missing.append(
            "prometheus and alertmanager are not on PATH, and there is no apt-get to take them from: install both, or leave"
            " the scene `alert` out (--only serve --only canary ...)"
        )
    return missing
