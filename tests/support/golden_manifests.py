"""The specs of tests/golden, the manifests that the operator's builders make of them, and Pod Security `restricted`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision import revision_hash, snapshot
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.disruption_budget import disruption_budget
from pagefleet_operator.domain.manifests.leaderworkerset import leader_worker_set
from pagefleet_operator.domain.manifests.prefill import prefill_deployment, prefill_disruption_budget
from pagefleet_operator.domain.manifests.service import service
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

FOLDER = Path(__file__).resolve().parents[1] / "golden"
SPLIT = "disaggregated"  # prefill and decode in pods of their own
SLEEPER = "vllm"  # whose warm spares have a sidecar
AWAKE = ("vllm-cpu", "sglang", "tgi", "custom", SPLIT, "image")  # specs of which no spares are made here
SPECS = ("minimal", "full", "gpu", SLEEPER, *AWAKE)
BUILDERS: Mapping[str, Callable[[Child], dict[str, Any]]] = {
    "deployment": lambda child: deployment(child, 2),
    "service": service,
    "disruption-budget": disruption_budget,
}
SPARE: Mapping[str, Callable[[Child], dict[str, Any]]] = {"spare-deployment": lambda child: spare_deployment(child, 1)}
SEVERAL = ("nodes",)  # specs whose replicas are groups of pods
GROUPED: Mapping[str, Callable[[Child], dict[str, Any]]] = {
    "leader-worker-set": lambda child: leader_worker_set(child, 2)
}
MADE = [(kind, name, build) for kind, build in BUILDERS.items() for name in SPECS]
MADE += [(kind, name, build) for kind, build in SPARE.items() for name in SPECS if name not in AWAKE]
MADE += [(kind, name, build) for kind, build in GROUPED.items() for name in SEVERAL]
PREFILL: Mapping[str, Callable[[Child], dict[str, Any]]] = {
    "prefill-deployment": lambda child: prefill_deployment(child, 2),
    "prefill-disruption-budget": prefill_disruption_budget,
}
MADE += [(kind, SPLIT, build) for kind, build in PREFILL.items()]
# https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
# and https://github.com/kubernetes/kubernetes/pull/130394 for image, which has been allowed since Kubernetes 1.33.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected",
           "secret"}  # fmt: skip


def spec_of(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return loaded


def child_of(spec: object) -> Child:
    parsed = parse(spec)
    if isinstance(parsed, SpecErrors):
        raise ValueError(parsed.message)
    uid = "0b9f3a52-6f0e-4d0c-9a55-0a4f5a6b7c8d"
    return Child("team-a", "chat", uid, revision_hash(parsed.raw), snapshot(parsed.raw))


def violations(pod: Mapping[str, Any]) -> Iterator[str]:
    """List a pod spec's violations of Pod Security `restricted` (v1.25 and later)."""
    context = pod.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes") or ():
        if not (set(volume) - {"name"}) <= VOLUMES:
            yield f"volume {volume['name']}"
    if context.get("sysctls") or context.get("seLinuxOptions"):
        yield "sysctls or seLinuxOptions"
    for container in [*pod["containers"], *pod.get("initContainers", ()), *pod.get("ephemeralContainers", ())]:
        yield from (f"{container['name']}: {what}" for what in _of_container(container, context))


def _of_container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    both = {**pod, **own}
    if own.get("privileged") or own.get("procMount", "Default") != "Default" or own.get("seLinuxOptions"):
        yield "privileged, procMount or seLinuxOptions"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities") or {}
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "capabilities"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield "runAsNonRoot"
    if (both.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield "hostPort"
