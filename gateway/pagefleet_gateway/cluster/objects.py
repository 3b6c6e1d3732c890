"""Reads InferenceServices and engine pods as the API server sends them. Total: a field of a wrong type counts as absent.

The operator validates. Here an invalid object must not stop the traffic of the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_contract import model_name
from pagefleet_contract.addresses import authority
from pagefleet_contract.names import (
    API_KEY_VARIABLES,
    API_KEYS_VOLUME,
    ENGINE_ANNOTATION,
    ENGINE_CONTAINER,
    PREFILL_LABEL,
    REVISION_LABEL,
    SERVICE_LABEL,
)
from pagefleet_contract.quantity import seconds
from pagefleet_contract.slo import objectives
from pagefleet_contract.traffic import (
    DEFAULT_HELD_BYTES,
    DEFAULT_HELD_REQUESTS,
    DEFAULT_RETRIES,
    MAX_HOLD_SECONDS,
    MAX_RETRIES,
    hold_seconds,
)
from pagefleet_gateway.cluster.engines import engine_from, own_engine
from pagefleet_gateway.cluster.service import QueueBounds, RateLimit, Service
from pagefleet_gateway.cluster.state import Pod


def service_from(raw: Mapping[str, object]) -> Service:
    """Return the routing part of an InferenceService."""
    metadata, spec, status = map_of(raw, "metadata"), map_of(raw, "spec"), map_of(raw, "status")
    route, traffic = map_of(map_of(spec, "rollout"), "route"), map_of(spec, "traffic")
    sticky, served = _text(route, "stickyBy"), model_name.served_name(raw)
    classes = [entry for entry in _maps(traffic, "priorities") if _headers(entry)]
    retries = traffic.get("retries")
    return Service(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        served_name=served,
        weights=_weights(status.get("traffic")),
        canary=_text(status, "canary"),
        canary_headers=_headers(route),
        sticky_header=sticky.removeprefix("header/").lower() if sticky.startswith("header/") else "",
        timeout_seconds=duration(_text(traffic, "timeout")),
        first_token_seconds=duration(_text(traffic, "firstTokenTimeout")),
        next_token_seconds=duration(_text(traffic, "nextTokenTimeout")),
        retries=min(max(retries, 0), MAX_RETRIES) if isinstance(retries, int) else DEFAULT_RETRIES,
        pod_limit=_count(map_of(traffic, "circuitBreaker"), "maxRequestsPerPod", 0),
        hold_seconds=_hold_seconds(spec),
        hold_requests=_count(map_of(traffic, "queue"), "maxRequests", DEFAULT_HELD_REQUESTS),
        hold_bytes=_count(map_of(traffic, "queue"), "maxBytes", DEFAULT_HELD_BYTES),
        tenant_header=_text(map_of(traffic, "queue"), "tenantHeader").lower(),
        priorities=tuple(_headers(entry) for entry in classes),
        priority_names=tuple(_text(entry, "name") for entry in classes),
        priority_bounds=tuple(_queue_bounds(map_of(entry, "queue")) for entry in classes),
        shed=_strings(map_of(status, "spending"), "shed"),
        shed_for_slo=_strings(map_of(status, "slo"), "shed"),
        slo_output_tokens=_count(map_of(status, "slo"), "maxOutputTokens", 0),
        objectives=objectives(map_of(spec, "slo")),
        limits=tuple(
            RateLimit(
                _text(entry, "header").lower(),
                _count(entry, "requestsPerMinute", 0),
                _count(entry, "tokensPerMinute", 0),
            )
            for entry in _maps(traffic, "rateLimits")
        ),
        fallback=_text(map_of(traffic, "fallback"), "service"),
        created=_text(metadata, "creationTimestamp"),
        name_lost=_name_lost(status),
        owns_name=bool(served) and _text(status, model_name.FIELD) == served,
        output_limit=_count(map_of(map_of(spec, "engine"), "limits"), "outputTokens", 0),
        max_length=_count(map_of(spec, "model"), "maxLength", 0),
        mirror=_mirror(map_of(status, "mirror")),
        peak_output_tokens=_count(map_of(traffic, "peak"), "maxOutputTokens", 0),
    )


def _name_lost(status: Mapping[str, object]) -> str:
    """Return the reason of the operator's condition that the model name is another service's."""
    for condition in _maps(status, "conditions"):
        if condition.get("type") == model_name.CONDITION and condition.get("status") == "False":
            return _text(condition, "reason") or model_name.TAKEN
    return ""


def _mirror(raw: Mapping[str, object]) -> tuple[str, float]:
    percent = raw.get("percent")
    valid = isinstance(percent, (int, float)) and 0 < percent <= 100
    return (_text(raw, "revision"), float(percent)) if valid and isinstance(percent, (int, float)) else ("", 0.0)


def _hold_seconds(spec: Mapping[str, object]) -> float:
    timeout, scaling = duration(_text(map_of(map_of(spec, "traffic"), "queue"), "timeout")), map_of(spec, "scaling")
    return hold_seconds(timeout, may_sleep="idleToZero" in scaling or scaling.get("mode") == "external")


def _queue_bounds(raw: Mapping[str, object]) -> QueueBounds:
    """Return the bounds of one class, `traffic.priorities[].queue`."""
    timeout = duration(_text(raw, "timeout"))
    longest = None if timeout is None else min(timeout, MAX_HOLD_SECONDS)
    return QueueBounds(longest, _count(raw, "maxRequests", 0), _count(raw, "maxBytes", 0))


def pod_from(raw: Mapping[str, object]) -> Pod | None:
    """Return an engine pod; None while it has no address, and when it has ended. The pods of no service have the service ""."""
    metadata, status = map_of(raw, "metadata"), map_of(raw, "status")
    labels, address = map_of(metadata, "labels"), _text(status, "podIP")
    if not address or _text(status, "phase") in ("Succeeded", "Failed"):
        return None
    described = _text(map_of(metadata, "annotations"), ENGINE_ANNOTATION)
    engine = engine_from(described) if described else own_engine(_engine_args(map_of(raw, "spec")))
    return Pod(
        uid=_text(metadata, "uid"),
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace"),
        service=_text(labels, PREFILL_LABEL) or _text(labels, SERVICE_LABEL),
        revision=_text(labels, REVISION_LABEL),
        address=authority(address, engine.port),
        ready=is_ready(raw),
        engine=engine,
        silent=is_silent(raw),
        key_secret=_key_secret(map_of(raw, "spec")),
        container=container_of(status),
        prefills=PREFILL_LABEL in labels,
    )


def _engine_args(spec: Mapping[str, object]) -> list[str]:
    """Return the arguments of a pod's engine."""
    found = [one.get("args") for one in _maps(spec, "containers") if one.get("name") == ENGINE_CONTAINER]
    return [word for words in found if isinstance(words, list) for word in words if isinstance(word, str)]


def container_of(status: Mapping[str, object]) -> str:
    """Return the id of a pod's engine container, of all its containers where none has the engine's name."""
    ids = {_text(one, "name"): _text(one, "containerID") for one in _maps(status, "containerStatuses")}
    return ids.get(ENGINE_CONTAINER) or ",".join(ids.values())


def _key_secret(spec: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the name and the key of the Secret with the engine's API key; None when the engine demands none."""
    for volume in _maps(spec, "volumes"):
        secret = map_of(volume, "secret")
        items = _maps(secret, "items")
        if volume.get("name") == API_KEYS_VOLUME and _text(secret, "secretName") and items:
            return (_text(secret, "secretName"), _text(items[0], "key"))
    for container in _maps(spec, "containers"):
        for variable in _maps(container, "env"):
            reference = map_of(map_of(variable, "valueFrom"), "secretKeyRef")
            if variable.get("name") in API_KEY_VARIABLES and _text(reference, "name"):
                return (_text(reference, "name"), _text(reference, "key"))
    return None


def is_ready(raw: Mapping[str, object]) -> bool:
    """Whether a pod's condition Ready is true and it does not terminate."""
    return "Ready" in _true_conditions(raw) and "deletionTimestamp" not in map_of(raw, "metadata")


def is_silent(raw: Mapping[str, object]) -> bool:
    """Whether a pod is not Ready only because its node stopped reporting. A kubelet removes ContainersReady together with
    Ready. The node controller removes only Ready when a node stops reporting. (Kubernetes, MarkPodsNotReady)"""
    true = _true_conditions(raw)
    gates = {_text(gate, "conditionType") for gate in _maps(map_of(raw, "spec"), "readinessGates")}
    terminating = "deletionTimestamp" in map_of(raw, "metadata")
    return not terminating and "Ready" not in true and {"ContainersReady", *gates} <= true


def _true_conditions(raw: Mapping[str, object]) -> set[str]:
    """Return the types of a pod's conditions that are true."""
    conditions = _maps(map_of(raw, "status"), "conditions")
    return {_text(condition, "type") for condition in conditions if condition.get("status") == "True"}


def duration(text: str) -> float | None:
    """Seconds of a Go duration such as `1h30m`; None when it is not one or is 0."""
    try:
        return seconds(text) or None
    except ValueError:
        return None


def _weights(raw: object) -> tuple[tuple[str, int], ...]:
    entries = raw if isinstance(raw, list) else []
    weights = []
    for entry in entries:
        if isinstance(entry, Mapping):
            revision, weight = entry.get("revision"), entry.get("weight")
            if isinstance(revision, str) and isinstance(weight, int) and weight >= 0:
                weights.append((revision, weight))
    return tuple(weights)


def _headers(raw: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the headers to match under `header`: lower-case name, exact value."""
    return tuple(
        sorted((name.lower(), value) for name, value in map_of(raw, "header").items() if isinstance(value, str))
    )


def _count(raw: Mapping[str, object], name: str, default: int) -> int:
    value = raw.get(name)
    return value if isinstance(value, int) and value >= 0 else default


def _maps(raw: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    value = raw.get(name)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _strings(raw: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = raw.get(name)
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


def map_of(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return a field that is an object; an empty one where it is none."""
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(raw: Mapping[str, object], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""
