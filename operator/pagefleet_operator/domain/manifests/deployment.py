"""A revision's Deployment: pods that pass Pod Security `restricted`, drain before they end, and report their failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pagefleet_contract.engine_metrics import annotation
from pagefleet_contract.names import ENGINE_ANNOTATION, ENGINE_CONTAINER
from pagefleet_contract.quantity import seconds
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.container import http_probe, restricted, variables
from pagefleet_operator.domain.base.revision_spec import Pod, RevisionSpec
from pagefleet_operator.domain.manifests import model_fetch
from pagefleet_operator.domain.runtimes import kv_events, kv_transfer
from pagefleet_operator.domain.runtimes.catalog import launch_of
from pagefleet_operator.domain.runtimes.launch import Launch
from pagefleet_operator.domain.runtimes.routing_sidecar import with_sidecar
from pagefleet_operator.domain.runtimes.volumes import volumes

USER = 65532
AFTER_DRAIN = 30
START_SECONDS = 1800  # until an engine that does not start is restarted, where the spec names no time
PROGRESS_SECONDS = 2 * START_SECONDS  # until Kubernetes says of a Deployment that it makes no progress
# The fields of a claim of spec.pod that the pod has, and those that the engine's container has.
CLAIMED, USED = ("name", "resourceClaimName", "resourceClaimTemplateName"), ("name", "request")
OVER_NODES: Mapping[str, Any] = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
}


def deployment(child: Child, replicas: int) -> dict[str, Any]:
    """Build the Deployment of a revision with this number of replicas."""
    launch = launch_of(child, release())
    metadata = child.with_own(child.labels)
    if launch.engine is not None:
        metadata["annotations"] = {**metadata.get("annotations", {}), ENGINE_ANNOTATION: annotation(launch.engine)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child.metadata() | child.with_own(child.labels),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": max(PROGRESS_SECONDS, 2 * start_seconds(child.spec.engine.start_timeout)),
            "selector": {"matchLabels": child.selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": metadata, "spec": _pod(child, launch)},
        },
    }


def _pod(child: Child, launch: Launch) -> dict[str, Any]:
    placement = child.spec.placement
    defined, mounts = volumes(child.spec)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": launch.drain + AFTER_DRAIN,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(child, launch, mounts)],
        "volumes": defined,
    }
    if fetching := model_fetch.container(child, release(), _amounts(child.spec), mounts):
        pod["initContainers"] = [fetching]
        pod["volumes"] = [*defined, *model_fetch.volumes(child.spec)]
    if placement.node_selector:
        pod["nodeSelector"] = dict(placement.node_selector)
    if placement.tolerations:
        pod["tolerations"] = list(placement.tolerations)
    if spread := _spread(child):
        pod["topologySpreadConstraints"] = spread
    pod |= required(child)
    return with_sidecar(pod, child, release()) if child.spec.engine.disaggregation else pod


def _spread(child: Child) -> list[dict[str, Any]]:
    """The spec's constraints, or the operator's own one, over the pods of this revision."""
    placement = child.spec.placement
    constraints = placement.topology_spread_constraints or ((OVER_NODES,) if placement.topology_spread else ())
    return [{**one, "labelSelector": {"matchLabels": child.selector}} for one in constraints]


def required(child: Child) -> dict[str, Any]:
    """The fields of a pod that spec.pod names."""
    pod = child.spec.pod
    given = {
        "imagePullSecrets": [dict(entry) for entry in pod.image_pull_secrets],
        "serviceAccountName": pod.service_account_name,
        "priorityClassName": pod.priority_class_name,
        "schedulerName": pod.scheduler_name,
        "runtimeClassName": pod.runtime_class_name,
        "resourceClaims": _claims(pod, CLAIMED),
    }
    return {name: value for name, value in given.items() if value}


def _container(child: Child, launch: Launch, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    engine = child.spec.engine
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": engine.image or launch.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [*launch.args, *engine.args],
        "env": variables(launch.env, engine.env),
        "ports": [
            {"name": "http", "containerPort": launch.port, "protocol": "TCP"},
            *kv_events.ports(child.spec),
            *kv_transfer.ports(child.spec),
        ],
        "resources": _amounts(child.spec),
        "startupProbe": http_probe(launch.startup, period=1, failures=start_seconds(engine.start_timeout)),
        "readinessProbe": http_probe(launch.readiness, period=2, failures=launch.readiness_failures),
        "livenessProbe": http_probe(launch.liveness, period=10, failures=6),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if launch.command:
        container["command"] = list(launch.command)
    if launch.stopping:
        container["lifecycle"] = {"preStop": {"exec": {"command": list(launch.stopping)}}}
    return container


def start_seconds(timeout: object) -> int:
    """The seconds that an engine has to start. Total: the spec of an old revision may be of any shape."""
    try:
        return max(1, math.ceil(seconds(str(timeout)))) if timeout else START_SECONDS
    except ValueError:
        return START_SECONDS


@cache  # every decision needs it, and it is read from a file
def release() -> str:
    """The operator's version, which is also the version of its own engine's image."""
    try:
        return version("pagefleet")
    except PackageNotFoundError:
        return "latest"


def _amounts(spec: RevisionSpec) -> dict[str, Any]:
    """CPU is requested and not limited: a throttled engine stalls every stream at once."""
    resources = spec.resources
    requests, limits = {"cpu": resources.cpu, "memory": resources.memory}, {"memory": resources.memory}
    accelerator = resources.accelerator
    if accelerator and not any(entry.get("accelerators") for entry in spec.pod.resource_claims):
        limits[accelerator.name] = requests[accelerator.name] = str(accelerator.count)
    for size, memory in sorted(resources.huge_pages.items()):  # Kubernetes overcommits neither of the two
        limits[f"hugepages-{size}"] = requests[f"hugepages-{size}"] = memory
    return {"requests": requests, "limits": limits} | (
        {"claims": claims} if (claims := _claims(spec.pod, USED)) else {}
    )


def _claims(pod: Pod, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """These fields of each of the spec's claims."""
    return [{name: entry[name] for name in fields if name in entry} for entry in pod.resource_claims]
