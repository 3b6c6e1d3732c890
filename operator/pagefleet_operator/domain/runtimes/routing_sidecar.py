"""The routing sidecar (operator/pagefleet_sidecar) of a decode pod, and of a warm spare whose engine must not be reached by everybody. It
is in the operator's own image.

It takes the engine's port, so that everything that reads the pod asks the sidecar: gateways, the operator, Prometheus. The engine
moves to a port of its own. The kubelet probes it there in a decode pod, and through the sidecar in a warm spare. Both must be ready for
the pod to be.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.disaggregation import (
    DEFAULT_PROTOCOL,
    PROTOCOL_FLAG,
    SIDECAR,
    SIDECAR_COMMAND,
    SIDECAR_LIVE_PATH,
    SIDECAR_READY_PATH,
    SPARE_FLAG,
)
from pagefleet_contract.names import ENGINE_PORT, SIDECAR_ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.container import http_probe, restricted
from pagefleet_operator.domain.runtimes.adapter import Sleep
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, plain

RESOURCES: Mapping[str, Any] = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
LOOPBACK = "127.0.0.1"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def with_sidecar(pod: Mapping[str, Any], child: Child, release: str) -> dict[str, Any]:
    """Return the pod of a replica as a decode pod."""
    decode: dict[str, Any] = copy.deepcopy(dict(pod))
    _listen(decode["containers"][0], "engine", SIDECAR_ENGINE_PORT)
    decode["containers"].append(_container(child, release))
    return decode


def without_sidecar(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decode pod with the engine alone, at its usual port."""
    alone: dict[str, Any] = copy.deepcopy(dict(pod))
    alone["containers"] = [one for one in alone["containers"] if one["name"] != SIDECAR]
    _listen(alone["containers"][0], "http", ENGINE_PORT)
    return alone


def guarded(pod: Mapping[str, Any], child: Child, release: str, sleep: Sleep) -> dict[str, Any]:
    """Return the pod of a replica as a warm spare: its engine can sleep, and only the sidecar reaches it."""
    spare: dict[str, Any] = copy.deepcopy(dict(pod))
    engine = spare["containers"][0]
    ours = {"--host": LOOPBACK, "--port": SIDECAR_ENGINE_PORT}
    given = ((one, one.partition("=")[0]) for one in engine["args"])
    # Of a flag that stands twice the last one counts, so those of sleep follow the spec's own arguments.
    engine["args"] = [*(f"{flag}={ours[flag]}" if flag in ours else one for one, flag in given), *sleep.flags]
    variables = [plain(name, value) for name, value in sleep.variables.items()]
    engine["env"] = [*(one for one in engine["env"] if one["name"] not in sleep.variables), *variables]
    if more := engine.pop("ports")[1:]:
        engine["ports"] = more
    for probe in PROBES:
        engine[probe]["httpGet"]["port"] = ENGINE_PORT  # a name stands for a port of the same container
    sidecar = _container(child, release)
    sidecar["args"].append(SPARE_FLAG)
    sidecar["readinessProbe"] = http_probe(SIDECAR_READY_PATH, period=1, failures=3)
    spare["containers"].append(sidecar)
    return spare


def _listen(engine: dict[str, Any], name: str, port: int) -> None:
    """Have the engine's container listen at this port under this name. Its own port is the first of its list."""
    engine["args"] = [f"--port={port}" if one.startswith("--port=") else one for one in engine["args"]]
    engine["ports"] = [{**engine["ports"][0], "name": name, "containerPort": port}, *engine["ports"][1:]]
    for probe in PROBES:
        engine[probe]["httpGet"]["port"] = name


def _container(child: Child, release: str) -> dict[str, Any]:
    given, split = child.spec.engine.disaggregation, adapter_of(child.spec).split
    args = [f"--revision={child.revision}"]
    if given and given.prefill_timeout:
        args.append(f"--prefill-timeout={given.prefill_timeout}")
    if given and split and split.protocol != DEFAULT_PROTOCOL:
        args.append(f"{PROTOCOL_FLAG}={split.protocol}")
    return {
        "name": SIDECAR,
        "image": child.image or f"docker.io/pagefleet/operator:{release}",
        "imagePullPolicy": "IfNotPresent",
        "command": [SIDECAR_COMMAND],
        "args": args,
        "env": [plain("HOME", TEMPORARY)],
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": copy.deepcopy(dict(RESOURCES)),
        "readinessProbe": http_probe(SIDECAR_LIVE_PATH, period=2, failures=3),
        "livenessProbe": http_probe(SIDECAR_LIVE_PATH, period=10, failures=6),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
