"""A revision's Deployment: pods that pass Pod Security `restricted`, drain before they end, say why they fail."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pagefleet_operator.domain.accelerator import gpus
from pagefleet_operator.domain.build.flags import drain_seconds, flags
from pagefleet_operator.domain.build.names import PORT, Child
from pagefleet_operator.domain.build.volumes import volumes
from pagefleet_operator.domain.quantity import whole

USER = 65532
AFTER_DRAIN = 30


def deployment(child: Child, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child.metadata(),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": 3600,
            "selector": {"matchLabels": child.selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": child.labels}, "spec": _pod(child)},
        },
    }


def _pod(child: Child) -> dict[str, Any]:
    placement: Mapping[str, Any] = child.snapshot.get("placement") or {}
    defined, mounts = volumes(child.snapshot)
    limits: Mapping[str, Any] = (child.snapshot.get("engine") or {}).get("limits") or {}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": drain_seconds(limits) + AFTER_DRAIN,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(child, mounts)],
        "volumes": defined,
    }
    if placement.get("nodeSelector"):
        pod["nodeSelector"] = dict(placement["nodeSelector"])
    if placement.get("tolerations"):
        pod["tolerations"] = list(placement["tolerations"])
    if placement.get("topologySpread", True):
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": child.selector},
            }
        ]
    return pod


def _container(child: Child, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    engine: Mapping[str, Any] = child.snapshot.get("engine") or {}
    return {
        "name": "engine",
        "image": engine.get("image") or default_image(child.snapshot),
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", *flags(child), *engine.get("args", [])],
        "env": [
            {"name": "OMP_NUM_THREADS", "value": str(whole(_resources(child)["cpu"]))},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the same volume
            *[dict(variable) for variable in engine.get("env", [])],
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _amounts(child),
        "startupProbe": _probe("/ready", period=1, failures=1800),
        "readinessProbe": _probe("/ready", period=2, failures=1),
        "livenessProbe": _probe("/health", period=10, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def default_image(snapshot: Mapping[str, Any]) -> str:
    """Pagefleet's own engine of the operator's version: for CUDA when GPUs are asked for."""
    try:
        release = version("pagefleet")
    except PackageNotFoundError:
        release = "latest"
    kind = "engine-cuda" if gpus(snapshot) else "engine-cpu"
    return f"docker.io/pagefleet/{kind}:{release}"


def _resources(child: Child) -> Mapping[str, Any]:
    return {"cpu": "1", "memory": "4Gi", **(child.snapshot.get("resources") or {})}


def _amounts(child: Child) -> dict[str, Any]:
    """CPU is requested and not limited: a throttled engine stalls every stream at once."""
    resources = _resources(child)
    requests, limits = {"cpu": resources["cpu"], "memory": resources["memory"]}, {"memory": resources["memory"]}
    accelerator = resources.get("accelerator")
    if accelerator:
        limits[accelerator["name"]] = requests[accelerator["name"]] = str(accelerator.get("count", 1))
    return {"requests": requests, "limits": limits}


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
