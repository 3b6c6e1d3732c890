"""`.spec.traffic` as typed values: durations in seconds. What only the gateway acts on is here too, so that a person's
mistake in it is found before a gateway reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_contract.names import GATEWAY
from pagefleet_contract.quantity import seconds


class Provider(StrEnum):
    GATEWAY = "Gateway"
    GATEWAY_API = "GatewayAPI"


class Backend(StrEnum):
    """What an HTTPRoute leads to."""

    SERVICE = "Service"
    POOL = "InferencePool"


@dataclass(frozen=True)
class Parent:
    """A Gateway API ParentReference. `namespace` "" is the route's own; `port` None any."""

    name: str
    namespace: str = ""
    section: str = ""
    port: int | None = None
    group: str = "gateway.networking.k8s.io"
    kind: str = "Gateway"


@dataclass(frozen=True)
class EndpointPicker:
    service: str = GATEWAY
    port: int = 9003
    failure_mode: str = "FailClose"


@dataclass(frozen=True)
class GatewayApi:
    """`backend` None: InferencePool where it is served, else Service."""

    parents: tuple[Parent, ...] = ()
    hostnames: tuple[str, ...] = ()
    backend: Backend | None = None
    picker: EndpointPicker = EndpointPicker()


@dataclass(frozen=True)
class Queue:
    """`timeout` None: the gateway decides by scaling.idleToZero and scaling.mode."""

    timeout: float | None
    max_requests: int
    max_bytes: int
    tenant_header: str = ""


@dataclass(frozen=True)
class PriorityQueue:
    """What may wait of one class. None: as `Queue` states."""

    timeout: float | None = None
    max_requests: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class Priority:
    name: str
    header: Mapping[str, str]
    queue: PriorityQueue = PriorityQueue()


@dataclass(frozen=True)
class RateLimit:
    """At least one of the two is not None."""

    header: str
    requests_per_minute: int | None
    tokens_per_minute: int | None


@dataclass(frozen=True)
class Traffic:
    provider: Provider
    gateway_api: GatewayApi | None
    timeout: float
    first_token_timeout: float | None
    next_token_timeout: float | None
    retries: int
    max_requests_per_pod: int | None
    queue: Queue
    priorities: tuple[Priority, ...]
    rate_limits: tuple[RateLimit, ...]
    fallback: str
    peak_output_tokens: int | None = None


def traffic(raw: Mapping[str, Any]) -> Traffic:
    return Traffic(
        provider=Provider(raw["provider"]),
        gateway_api=_gateway_api(raw["gatewayAPI"]) if "gatewayAPI" in raw else None,
        timeout=seconds(raw["timeout"]),
        first_token_timeout=_seconds(raw, "firstTokenTimeout"),
        next_token_timeout=_seconds(raw, "nextTokenTimeout"),
        retries=raw["retries"],
        max_requests_per_pod=raw.get("circuitBreaker", {}).get("maxRequestsPerPod"),
        queue=_queue(raw["queue"]),
        priorities=tuple(_priority(entry) for entry in raw.get("priorities") or ()),
        rate_limits=tuple(
            RateLimit(entry["header"], entry.get("requestsPerMinute"), entry.get("tokensPerMinute"))
            for entry in raw.get("rateLimits") or ()
        ),
        fallback=raw.get("fallback", {}).get("service", ""),
        peak_output_tokens=raw.get("peak", {}).get("maxOutputTokens"),
    )


def _seconds(raw: Mapping[str, Any], name: str) -> float | None:
    return seconds(raw[name]) if name in raw else None


def _queue(raw: Mapping[str, Any]) -> Queue:
    return Queue(_seconds(raw, "timeout"), raw["maxRequests"], raw["maxBytes"], raw.get("tenantHeader", ""))


def _priority(raw: Mapping[str, Any]) -> Priority:
    queue = raw.get("queue", {})
    bounds = PriorityQueue(_seconds(queue, "timeout"), queue.get("maxRequests"), queue.get("maxBytes"))
    return Priority(raw["name"], raw["header"], bounds)


def _gateway_api(raw: Mapping[str, Any]) -> GatewayApi:
    return GatewayApi(
        parents=tuple(
            Parent(
                name=entry["name"],
                namespace=entry.get("namespace", ""),
                section=entry.get("sectionName", ""),
                port=entry.get("port"),
                group=entry["group"],
                kind=entry["kind"],
            )
            for entry in raw["parentRefs"]
        ),
        hostnames=tuple(raw.get("hostnames") or ()),
        backend=Backend(raw["backend"]) if "backend" in raw else None,
        picker=EndpointPicker(raw["picker"]["service"], raw["picker"]["port"], raw["picker"]["failureMode"]),
    )
