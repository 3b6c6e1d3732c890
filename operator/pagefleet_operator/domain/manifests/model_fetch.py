"""The container that fetches a pod's models before its engine starts (operator/pagefleet_fetch), in the operator's own image.

It serves its progress on the engine's port, which is free until then and open to the operator already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.model_fetch import CONTAINER
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.container import restricted, variables
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, plain
from pagefleet_operator.domain.runtimes.uris import FETCHED, HUB, OCI, fetched, link_name
from pagefleet_operator.domain.runtimes.volumes import CACHE_FOLDER, GROUP_READS

COMMAND = "pagefleet-fetch"
OWN_CACHE = f"{TEMPORARY}/fetched"  # of a service without spec.model.cache
SHARED = ("cpu", "memory")
PULL_SECRETS, SECRETS_FOLDER = "pull-secrets", "/etc/pagefleet/pull-secrets"


def container(
    child: Child, release: str, amounts: Mapping[str, Any], mounts: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The container; None where nothing is fetched. `amounts` and `mounts` are those of the engine's container: a pod is as large as
    the larger of the two, and so no larger than without this one."""
    spec = child.spec
    uris = [uri for uri in fetched(spec.model) if not (adapter_of(spec).fetches and uri.startswith(HUB))]
    if not uris:
        return None
    cache = CACHE_FOLDER if spec.model.cache_claim else OWN_CACHE
    own = [plain("HOME", TEMPORARY)]
    return {
        "name": CONTAINER,
        "image": child.image or f"docker.io/pagefleet/operator:{release}",
        "imagePullPolicy": "IfNotPresent",
        "command": [COMMAND],
        "args": [
            f"--cache={cache}",
            *([f"--cache-size={spec.model.cache_size}"] if spec.model.cache_size else []),
            f"--into={FETCHED}",
            f"--port={ENGINE_PORT if spec.engine.port is None else spec.engine.port}",
            *(["--keep-trying"] if spec.nodes > 1 else []),
            *([f"--pull-secrets={SECRETS_FOLDER}"] if _asks_registries(spec) else []),
            *(f"{link_name(uri)}={uri}" for uri in uris),
        ],
        "env": variables(own, spec.engine.env),
        "resources": {
            kind: {name: amounts[kind][name] for name in SHARED if name in amounts[kind]}
            for kind in ("requests", "limits")
        },
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *(_writable(mount) for mount in mounts if mount["mountPath"] in (TEMPORARY, CACHE_FOLDER)),
            *(
                [{"name": PULL_SECRETS, "mountPath": SECRETS_FOLDER, "readOnly": True}]
                if _asks_registries(spec)
                else []
            ),
        ],
    }


def volumes(spec: RevisionSpec) -> list[dict[str, Any]]:
    """What this container alone mounts: the pod's pull secrets as files, where it asks a registry with them. As for the kubelet, one
    that is not there is no fault."""
    if not _asks_registries(spec):
        return []
    sources = [
        {
            "secret": {
                "name": one["name"],
                "optional": True,
                "items": [{"key": ".dockerconfigjson", "path": f"{number}.json"}],
            }
        }
        for number, one in enumerate(spec.pod.image_pull_secrets)
    ]
    return [{"name": PULL_SECRETS, "projected": {"defaultMode": GROUP_READS, "sources": sources}}]


def _asks_registries(spec: RevisionSpec) -> bool:
    """Whether a registry is asked by this container with pull secrets."""
    return bool(spec.pod.image_pull_secrets) and any(uri.startswith(OCI) for uri in fetched(spec.model))


def _writable(mount: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mount.items() if name != "readOnly"}
