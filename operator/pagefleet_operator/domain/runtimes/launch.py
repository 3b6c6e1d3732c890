"""How one replica's container is started, whatever engine it is; and what the engines of others have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.engine_metrics import Engine
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_contract.quantity import whole
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision_spec import NEURON, NEURON_CORE, RevisionSpec

TEMPORARY = "/tmp"  # noqa: S108 - the pod's own volume
KNOWN_DELAY = 5  # seconds until every gateway knows that a pod ends
# Flags that the operator writes for every engine of others, with the field that sets each.
COMMON_FLAGS = {
    "--model": "spec.model.source",
    "--served-model-name": "spec.model.servedName",
    "--host": "",
    "--port": "",
}


@dataclass(frozen=True)
class Launch:
    """How a replica's container starts and stops.

    `command` () stands for the image's entrypoint. Probes are paths. A stopping replica serves open streams for `drain`
    seconds. `stopping` runs in the container before SIGTERM. `engine` is None for our own engine, whose pods need no
    annotation.
    """

    image: str
    args: tuple[str, ...]
    drain: int
    command: tuple[str, ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()
    startup: str = "/health"
    readiness: str = "/health"
    liveness: str = "/health"
    readiness_failures: int = 3
    stopping: tuple[str, ...] = ()
    engine: Engine | None = None
    port: int = ENGINE_PORT


def plain(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def pod_ip(name: str) -> dict[str, Any]:
    """A variable with the pod's own address."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def threads(spec: RevisionSpec) -> str:
    return str(whole(spec.resources.cpu))


def caches(spec: RevisionSpec) -> tuple[dict[str, Any], ...]:
    """Everything that these engines write goes to /tmp: the root file system is read-only, and user 65532 has no name in
    their images (getpass asks for one)."""
    return (
        plain("OMP_NUM_THREADS", threads(spec)),
        plain("HOME", TEMPORARY),
        plain("USER", "pagefleet"),
        plain("XDG_CACHE_HOME", f"{TEMPORARY}/cache"),
        plain("HF_HOME", f"{TEMPORARY}/huggingface"),
        plain("TORCHINDUCTOR_CACHE_DIR", f"{TEMPORARY}/inductor"),
        plain("TRITON_CACHE_DIR", f"{TEMPORARY}/triton"),
    )


def neuron(spec: RevisionSpec) -> tuple[dict[str, Any], ...]:
    """What Neuron's runtime and compiler are told: the cores of the container, and a folder for compiled models that can be
    written. Source: AWS Neuron, runtime configuration and persistent cache."""
    if spec.accelerator_name not in (NEURON, NEURON_CORE):
        return ()
    cores = [plain("NEURON_RT_NUM_CORES", str(spec.accelerators))] if spec.accelerator_name == NEURON_CORE else []
    return (*cores, plain("NEURON_COMPILE_CACHE_URL", f"{TEMPORARY}/neuron-compile-cache"))


def api_key(spec: RevisionSpec, name: str) -> tuple[dict[str, Any], ...]:
    """The key as a variable: these engines know one key, and read it when they start."""
    reference = spec.engine.api_key
    if reference is None:
        return ()
    return ({"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}},)


def served_name(child: Child) -> str:
    return child.spec.model.served_name or child.service


def flag_name(argument: str) -> str:
    """The flag that an argument names. vLLM reads _ in it as -, and what follows a dot as a field of its JSON document:
    --max_model_len=8, --speculative-config.method=ngram."""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def flags(values: Mapping[str, object]) -> list[str]:
    """FLAG=VALUE of those that have a value; a flag alone for True."""
    given = {flag: value for flag, value in values.items() if value is not None and value is not False}
    return [flag if value is True else f"{flag}={value}" for flag, value in given.items()]
