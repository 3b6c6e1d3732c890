"""The container that fetches a pod's models before its engine starts (operator/pagefleet_fetch), in the operator's own image.

It serves its progress on the engine's port, which is free until then and open to the operator already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.model_fetch import CONTAINER
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.container import restricted
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.runtimes.launch import TEMPORARY, plain
from pagefleet_operator.domain.runtimes.uris import FETCHED, HUB, fetched, link_name
from pagefleet_operator.domain.runtimes.volumes import CACHE_FOLDER

COMMAND = "pagefleet-fetch"
OWN_CACHE = f"{TEMPORARY}/fetched"  # of a service without spec.model.cache
SHARED = ("cpu", "memory")


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
            f"--port={ENGINE_PORT}",
            *(f"{link_name(uri)}={uri}" for uri in uris),
        ],
        "env": list({entry["name"]: dict(entry) for entry in [*own, *spec.engine.env]}.values()),
        "resources": {
            kind: {name: amounts[kind][name] for name in SHARED if name in amounts[kind]}
            for kind in ("requests", "limits")
        },
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [_writable(mount) for mount in mounts if mount["mountPath"] in (TEMPORARY, CACHE_FOLDER)],
    }


def _writable(mount: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mount.items() if name != "readOnly"}
