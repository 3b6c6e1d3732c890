"""Turns Deployments, LeaderWorkerSets and pods as the API server has them into readings. Pure."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagefleet_contract.model_fetch import CONTAINER, EXIT_AGAIN
from pagefleet_contract.names import AWAKE_GATE, ENGINE_CONTAINER, GATEWAY, PREFILL_LABEL, REVISION_LABEL, SPARE_LABEL
from pagefleet_operator.domain.manifests import retained
from pagefleet_operator.domain.manifests.leaderworkerset import KIND as GROUPED
from pagefleet_operator.domain.rollout.loadtest import parse_result
from pagefleet_operator.domain.status.observation import (
    LoadTestReading,
    PodFault,
    PodReading,
    RevisionReading,
    SpareReading,
)

CONFIGURATION_EXIT = 78
IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
# The reason of Kubernetes for a pod that has scheduling gates; Kueue's gate, and the field that puts a pod into its queue.
GATED, KUEUE_GATE, QUEUED_BY = "SchedulingGated", "kueue.x-k8s.io/admission", "spec.pod.labels"
FIELD_REASONS = {"spec.model.source": "ModelNotFound"}


def revisions(
    deployments: Iterable[Mapping[str, Any]], pods: Iterable[PodReading], owners: Mapping[str, str]
) -> dict[str, RevisionReading]:
    """Readings by revision, of Deployments and LeaderWorkerSets. `owners` maps a pod's name to its revision."""
    deployments = list(deployments)
    grouped_sets = {revision_of(item) for item in deployments if item.get("kind") == GROUPED}
    replicas = {revision_of(item): int(item.get("spec", {}).get("replicas", 1)) for item in deployments}
    refusals = {revision_of(item): refusal(item) for item in deployments}
    templates = {revision_of(item): retained.applied(item) for item in deployments}
    grouped: dict[str, list[PodReading]] = {name: [] for name in replicas}
    for pod in pods:
        grouped.setdefault(owners[pod.name], []).append(pod)
    return {
        name: RevisionReading(
            name,
            replicas.get(name),
            tuple(sorted(members, key=lambda pod: pod.name)),
            grouped=name in grouped_sets,
            refused=refusals.get(name, ""),
            templates=templates.get(name),
        )
        for name, members in grouped.items()
        if name in replicas or any(not pod.terminating for pod in members)
    }


def with_spares(
    revisions_read: Mapping[str, RevisionReading],
    deployments: Iterable[Mapping[str, Any]],
    spares: Iterable[tuple[str, SpareReading]],
) -> dict[str, RevisionReading]:
    """The readings with their revisions' spares added. `spares` are pairs of a revision and a spare's reading."""
    result = _with_deployments(
        revisions_read,
        deployments,
        lambda reading, item: replace(
            reading,
            spare_replicas=int(item.get("spec", {}).get("replicas", 1)),
            spare_uid=item["metadata"]["uid"],
            spare_refused=refusal(item),
            spare_templates=retained.applied(item),
        ),
    )
    for name, spare in sorted(spares, key=lambda entry: entry[1].pod.name):
        if name in result:
            result[name] = replace(result[name], spares=(*result[name].spares, spare))
    return result


def with_prefill(
    revisions_read: Mapping[str, RevisionReading],
    deployments: Iterable[Mapping[str, Any]],
    pods: Iterable[tuple[str, PodReading]],
) -> dict[str, RevisionReading]:
    """The readings with their revisions' prefill pods added. `pods` are pairs of a revision and a prefill pod's reading."""
    result = _with_deployments(
        revisions_read,
        deployments,
        lambda reading, item: replace(reading, prefill_refused=refusal(item), prefill_templates=retained.applied(item)),
    )
    for name, reading in sorted(pods, key=lambda entry: entry[1].name):
        if name in result:
            result[name] = replace(result[name], prefill=(*result[name].prefill, reading))
    return result


def _with_deployments(
    revisions_read: Mapping[str, RevisionReading],
    deployments: Iterable[Mapping[str, Any]],
    noted: Callable[[RevisionReading, Mapping[str, Any]], RevisionReading],
) -> dict[str, RevisionReading]:
    """The readings after `noted` has put each Deployment into its revision's; a revision without a workload of its own gets one."""
    result = dict(revisions_read)
    for item in deployments:
        name = revision_of(item)
        result[name] = noted(result.get(name) or RevisionReading(name, None), item)
    return result


def is_prefill(item: Mapping[str, Any]) -> bool:
    """Whether a pod or a Deployment is one of prefill pods."""
    return PREFILL_LABEL in (item["metadata"].get("labels") or {})


def is_spare(item: Mapping[str, Any]) -> bool:
    return SPARE_LABEL in (item["metadata"].get("labels") or {})


def spare(item: Mapping[str, Any]) -> SpareReading:
    """The reading of one spare, without its engine's load."""
    status = item.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    gate, containers = conditions.get(AWAKE_GATE), conditions.get("ContainersReady") or {}
    return SpareReading(
        pod=pod(item),
        address=status.get("podIP") or "",
        opened=gate is not None and gate["status"] == "True",
        since=seconds(gate["lastTransitionTime"]) if gate and gate.get("lastTransitionTime") else None,
        loaded=containers.get("status") == "True",
    )


def refusal(deployment: Mapping[str, Any]) -> str:
    """Why the API server refuses to create a Deployment's pods (a quota, a policy); "" when it does not."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    failed = (c for c in conditions if c.get("type") == "ReplicaFailure" and c.get("status") == "True")
    message = next((str(c.get("message", "no more pods can be created")) for c in failed), "")
    return re.sub(r'pods "[^"]*" is forbidden: ', "", message)  # each attempt has another name


def revision_of(item: Mapping[str, Any]) -> str:
    return str((item["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def deletable(
    uid: str, planned: Iterable[Mapping[str, Any]], live: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Those of the live children, by kind and name, that are neither planned nor controlled by another object than the service of
    this uid. Labels alone, which anybody may change, make no child one to delete."""
    names = {(child["kind"], child["metadata"]["name"]) for child in planned}

    def is_own(item: Mapping[str, Any]) -> bool:
        owners = item["metadata"].get("ownerReferences") or ()
        return all(owner["uid"] == uid for owner in owners if owner.get("controller"))

    return {key: item for key, item in live.items() if key not in names and is_own(item)}


def has_ended(item: Mapping[str, Any]) -> bool:
    """Whether a pod has ended for good, as an evicted one has. It holds nothing, another one is there in its place, and its object
    stays until the cluster has thousands of such."""
    return (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pod(item: Mapping[str, Any]) -> PodReading:
    """The reading of one pod, without its engine's load."""
    metadata, status = item["metadata"], item.get("status") or {}
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    is_ready = ready is not None and ready["status"] == "True"
    return PodReading(
        name=metadata["name"],
        ready=is_ready,
        terminating="deletionTimestamp" in metadata,
        created=seconds(metadata["creationTimestamp"]),
        ready_since=seconds(ready["lastTransitionTime"]) if ready and is_ready else None,
        fault=None if is_ready else fault(status, gates(item)),
        fetching=not is_ready and any(_is_begun(one) and not _is_done(one) for one in _fetching(status)),
        fetched=is_ready or any(_is_done(one) for one in _fetching(status)),
    )


def _fetching(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The status of the container that fetches the model, in a list; [] in a pod without one."""
    return [one for one in status.get("initContainerStatuses") or () if one.get("name") == CONTAINER]


def _is_begun(container: Mapping[str, Any]) -> bool:
    """Whether a container has been started once: it runs, has ended, or waits for its next start."""
    state = container.get("state") or {}
    waits = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return "running" in state or "terminated" in state or waits or bool(container.get("lastState"))


def _is_done(container: Mapping[str, Any]) -> bool:
    ended = (container.get("state") or {}).get("terminated")
    return ended is not None and ended.get("exitCode") == 0


def gates(item: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a pod's scheduling gates, which somebody has to remove before a node is looked for."""
    return tuple(str(gate.get("name", "")) for gate in (item.get("spec") or {}).get("schedulingGates") or ())


def fault(status: Mapping[str, Any], gates: Sequence[str] = ()) -> PodFault | None:
    """Why a pod cannot run; None when its status gives no reason. `gates` are its scheduling gates."""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _placeless(condition, gates)
    for container in _fetching(status):
        if failed := _fetch_fault(container):
            return failed
    listed = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    for container in (one for one in listed if one.get("name", ENGINE_CONTAINER) == ENGINE_CONTAINER):
        state, last = container.get("state") or {}, container.get("lastState") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in IMAGE_REASONS:
            return PodFault(
                waiting["reason"], waiting.get("message", "the image cannot be pulled"), "spec.engine.image"
            )
        ended = state.get("terminated") or last.get("terminated")
        if ended:
            return _ended(ended)
        if waiting.get("reason") == "CreateContainerConfigError":
            return PodFault("CreateContainerConfigError", waiting.get("message", ""), "spec.engine")
    others = (one for one in listed if one.get("name", ENGINE_CONTAINER) not in (ENGINE_CONTAINER, CONTAINER))
    return next(filter(None, map(_fault_of_another, others)), None)


def _fault_of_another(container: Mapping[str, Any]) -> PodFault | None:
    """Why a container does not run that is neither the engine nor fetches: the sidecar, or one that a webhook has added."""
    state, last, name = container.get("state") or {}, container.get("lastState") or {}, f"container {container['name']}"
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or last.get("terminated") or {}
    if waiting.get("reason") in (*IMAGE_REASONS, "CreateContainerConfigError"):
        return PodFault(waiting["reason"], f"{name}: {waiting.get('message', 'it cannot be started')}")
    if "running" in state or not ended.get("exitCode"):
        return None
    message = str(ended.get("message") or ended.get("reason") or "").strip()
    return PodFault("ContainerExited", f"{name}: exit status {ended['exitCode']}: {message[-500:]}")


def _placeless(condition: Mapping[str, Any], gates: Sequence[str]) -> PodFault:
    """Why a pod has no node, of its condition PodScheduled."""
    if condition.get("reason") != GATED:
        return PodFault("Unschedulable", condition.get("message", "no node fits"), "spec.resources")
    message = f"waits for its admission: {', '.join(gates) or condition.get('message', 'it has scheduling gates')}"
    if KUEUE_GATE not in gates:
        return PodFault(GATED, message)
    return PodFault(GATED, f"{message}; `kubectl get workloads.kueue.x-k8s.io` shows what Kueue waits for", QUEUED_BY)


def _fetch_fault(container: Mapping[str, Any]) -> PodFault | None:
    """Why the model is not fetched; None while it is, and afterwards."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or last.get("terminated") or {}
    if waiting.get("reason") in IMAGE_REASONS:
        return PodFault(waiting["reason"], waiting.get("message", "the operator's image cannot be pulled"))
    if waiting.get("reason") == "CreateContainerConfigError":
        return PodFault("CreateContainerConfigError", waiting.get("message", ""), "spec.engine")
    if "running" in state or not ended.get("exitCode"):
        return None
    if ended.get("reason") == "OOMKilled":
        message = (
            "the container that fetches the model was killed because it ran out of memory; raise spec.resources.memory"
        )
        return PodFault("OOMKilled", message, "spec.resources.memory")
    if ended.get("exitCode") == EXIT_AGAIN:
        told = _report(ended)
        field, message = told or ("", str(ended.get("message") or "the transfer ended early"))
        return PodFault("FetchInterrupted", message[-500:], field)
    return _ended(ended)


def _report(ended: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field and the message of a termination message of ours; None for any other."""
    try:
        report = json.loads(str(ended.get("message") or ""))
        return str(report["field"]), str(report["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _ended(ended: Mapping[str, Any]) -> PodFault:
    """The fault of a container that has ended. Our engine names the spec field to fix in its termination message; any
    other message is shown as it is."""
    message = str(ended.get("message") or ended.get("reason") or f"exit status {ended.get('exitCode')}").strip()
    if ended.get("exitCode") == CONFIGURATION_EXIT:
        if (told := _report(ended)) is None:
            return PodFault("StartFailed", message[-500:])
        field, text = told
        return PodFault(FIELD_REASONS.get(field, "StartFailed"), text, field)
    if ended.get("reason") == "OOMKilled":
        return PodFault(
            "OOMKilled",
            "the engine was killed because it ran out of memory; raise spec.resources.memory or lower spec.engine.kvCache",
            "spec.resources.memory",
        )
    return PodFault("EngineExited", f"exit status {ended.get('exitCode')}: {message[-500:]}")


def load_test(job: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]]) -> LoadTestReading:
    """The state of a load test's Job. Its result is the termination message of the pod that succeeded."""
    if job is None:
        return LoadTestReading()
    done = {
        c["type"]: str(c.get("message") or c.get("reason") or "")
        for c in (job.get("status") or {}).get("conditions") or ()
        if c.get("status") == "True"
    }
    messages = [
        (ended.get("exitCode"), str(ended.get("message") or ended.get("reason") or ""))
        for item in pods
        for container in (item.get("status") or {}).get("containerStatuses") or ()
        if (ended := (container.get("state") or {}).get("terminated"))
    ]
    if "Complete" in done:
        for code, message in messages:
            if code == 0:
                return _result(message)
        return LoadTestReading(failure="its pod was deleted before its result was read")
    if "Failed" in done:
        last = next((message for code, message in reversed(messages) if code != 0), "")
        return LoadTestReading(failure=(last or done["Failed"] or "the Job failed")[-500:])
    return LoadTestReading()


def _result(message: str) -> LoadTestReading:
    try:
        result = parse_result(json.loads(message))
    except (ValueError, RecursionError):
        result = None
    if result is None:
        return LoadTestReading(failure=f"its result cannot be read: {message[:200]!r}")
    return LoadTestReading(result=result)


def seconds(text: str) -> float:
    """RFC 3339 to UNIX seconds."""
    return datetime.datetime.fromisoformat(text).timestamp()


def is_installed_gateway(item: Mapping[str, Any]) -> bool:
    """Whether a pod of a tenant's namespace that is labelled as a gateway is one of `manifests/picker`: a ReplicaSet's, ready,
    under the gateway's service account. A label alone is not believed, because anything that runs there can carry it."""
    owners = item["metadata"].get("ownerReferences") or ()
    controlled = any(owner.get("controller") and owner.get("kind") == "ReplicaSet" for owner in owners)
    account = (item.get("spec") or {}).get("serviceAccountName")
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return controlled and account == GATEWAY and ready
