"""The Job of a loadTest step: the operator's own image runs `pagefleet bench` against the canary's Service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_contract.names import LOAD_TEST, LOAD_TEST_LABEL, MANAGED, MANAGED_LABEL, NAME_LABEL
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.container import restricted
from pagefleet_operator.domain.base.revision_spec import KeyReference
from pagefleet_operator.domain.manifests.deployment import required

CONTAINER = "load"
TTL_SECONDS = 3600
USER = 65532
KEY_FOLDER = "/etc/pagefleet/api-key"
ALL_READ = 0o444  # within this pod, whose only user is USER


def job_name(child: Child, started: float) -> str:
    """The name of an attempt's Job: there is one Job for each. `started` is when the step began."""
    return f"{child.service[:36].rstrip('-.')}-{child.revision}-load-{int(started) % 100_000_000:x}"


def load_test_job(
    child: Child, image: str, profile: Mapping[str, Any], timeout: float, started: float
) -> dict[str, Any]:
    """The whole load test may take `timeout` seconds."""
    metadata = child.metadata()
    labels = {MANAGED_LABEL: MANAGED, NAME_LABEL: LOAD_TEST}
    labels[LOAD_TEST_LABEL] = child.name
    arguments = [
        "bench", "--url", f"http://{child.name}.{child.namespace}.svc:80", "--model", served_name(child),
        "--profile", json.dumps(dict(profile), sort_keys=True), "--result-file", "/dev/termination-log",
    ]  # fmt: skip
    key = child.spec.engine.api_key
    if key is not None:
        arguments += ["--api-key-file", f"{KEY_FOLDER}/key"]
    # No revision label: the revision's Service and PodDisruptionBudget must not take this pod for an engine.
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "name": job_name(child, started), "labels": labels},
        "spec": {
            "backoffLimit": 1,
            "activeDeadlineSeconds": max(1, int(timeout)),
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": {
                "metadata": child.with_own(labels),
                "spec": _pod(image, arguments, key) | _required(child),
            },
        },
    }


def served_name(child: Child) -> str:
    """The model's name in requests."""
    return child.spec.model.served_name or child.service


def _required(child: Child) -> dict[str, Any]:
    """What the cluster asks of this pod too. The other fields of spec.pod are for engines."""
    given = required(child)
    return {name: given[name] for name in ("imagePullSecrets", "priorityClassName") if name in given}


def _pod(image: str, arguments: list[str], key: KeyReference | None) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if key is not None:  # the canary's engine demands it
        items = [{"key": key.key, "path": "key"}]
        volumes.append({"name": "api-key", "secret": {"secretName": key.name, "items": items, "defaultMode": ALL_READ}})
        mounts.append({"name": "api-key", "mountPath": KEY_FOLDER, "readOnly": True})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["pagefleet"],
                "args": arguments,
                "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the volume below
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": restricted(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
