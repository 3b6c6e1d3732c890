"""The picker's refusals: status, code and message of each. Pure; decides nothing.

A message names the object, the number or limit, and the next step of the client or its operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pagefleet_contract.headers import BACKGROUND, PRIORITY_HEADER, is_background
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.limits.budgets import Spent
from pagefleet_gateway.limits.rate_limits import Exceeded
from pagefleet_gateway.picking.routing import Refusal

RETRY_AFTER_SECONDS = 5
OVERLOADED_RETRY_AFTER_SECONDS = 1
BUDGET_RETRY_AFTER_SECONDS, PROMISE_RETRY_AFTER_SECONDS = 3600, 60
NO_READY_POD, OVERLOADED = "no_ready_pod", "overloaded"  # refusals that end by waiting
RATE_LIMITED = "rate_limit_exceeded"
NO_IDLE_CAPACITY = "no_idle_capacity"
INSUFFICIENT_QUOTA = "insufficient_quota"
NO_POD_IN_SUBSET = "no_pod_in_subset"
SHED = "sheddable_dropped"
MIB = 1024 * 1024


def without_capacity(service: Service, headers: Mapping[str, str]) -> Refusal | None:
    """Refuse a request that gives way: background work, or one whose InferenceObjective has a negative priority. None for any
    other request."""
    if is_background(headers):
        message = f"{_name(service)} has no idle capacity for a request with `{PRIORITY_HEADER}: {BACKGROUND}`"
        return _too_many(service, NO_IDLE_CAPACITY, message, OVERLOADED_RETRY_AFTER_SECONDS)
    return shed(service) if service.is_sheddable(headers) else None


def shed(service: Service) -> Refusal:
    """A request of negative priority is dropped under load: it does not wait."""
    message = f"{_name(service)} has no capacity left for a request of negative priority (its InferenceObjective)"
    return _too_many(service, SHED, message, OVERLOADED_RETRY_AFTER_SECONDS)


def limited(service: Service, limit: Exceeded | Spent) -> Refusal:
    """The code of a spent budget is OpenAI's: a client must not try again soon."""
    if isinstance(limit, Spent):
        message = f"the API key {limit.key!r} has used its {limit.tokens} tokens of {limit.month} (UTC); ask the gateway's operator for more"
        refusal = _too_many(service, INSUFFICIENT_QUOTA, message, math.ceil(limit.seconds))
        return replace(refusal, error_type=INSUFFICIENT_QUOTA)
    allowed = f"{limit.per_minute} {limit.unit} a minute for {limit.scope}"
    message = f"rate limit exceeded for {_name(service)} ({allowed})"
    refusal = _too_many(service, RATE_LIMITED, message, math.ceil(limit.seconds))
    return replace(refusal, bucket=limit.bucket)


def given_up(service: Service, class_name: str) -> Refusal | None:
    """Refuse a class that the operator gives up: for the budget (`.status.spending.shed`) or for a promise (`.status.slo.shed`)."""
    about = f"{_name(service)} refuses requests of priority {class_name}"
    if class_name in service.shed:
        message = f"{about}: its budget for the month (spec.cost.budget) is nearly spent"
        return _too_many(service, "budget_spent", message, BUDGET_RETRY_AFTER_SECONDS)
    if class_name in service.shed_for_slo:
        message = f"{about}: a promise to other requests (spec.slo) is about to break"
        return _too_many(service, "promise_at_risk", message, PROMISE_RETRY_AFTER_SECONDS)
    return None


def overloaded(service: Service) -> Refusal:
    message = f"every ready pod of {_name(service)} is at its limit of {service.pod_limit} requests in flight"
    return _too_many(service, OVERLOADED, message, OVERLOADED_RETRY_AFTER_SECONDS)


def ends_engines(service: Service, deaths: int, wait_seconds: float) -> Refusal:
    """The client's library does not retry a 422. After the wait the picker lets one try pass."""
    message = (
        f"{deaths} engines of {_name(service)} died while they had this request, so it goes to no other one for "
        f"{math.ceil(wait_seconds)} s; change it, and send it to the service's owner with the time"
    )
    return Refusal(422, "invalid_request_error", "request_ends_engines", message, service=service.key)


def unreadable(service: Service) -> Refusal:
    message = (
        f"the request's body must be a JSON object in UTF-8 (RFC 8259), because {_name(service)} sets fields of it"
    )
    return Refusal(400, "invalid_request_error", "invalid_json", message, service=service.key)


def engine_key_unknown(service: Service) -> Refusal:
    message = (
        f"the engines of {_name(service)} demand an API key that this gateway cannot read from its Secret; the service's "
        "owner must allow it (docs/gateway.md, Keys of engines)"
    )
    return _unavailable(service, "engine_key_unknown", message)


def queue_full(service: Service) -> Refusal:
    limits = f"{service.hold_requests} requests / {service.hold_bytes / MIB:g} MiB"
    return _too_many(service, "queue_full", f"queue full for {_name(service)} ({limits})", RETRY_AFTER_SECONDS)


def class_queue_full(service: Service, priority: int) -> Refusal:
    """The bounds of one class, `traffic.priorities[].queue`."""
    bounds = service.bounds_of(priority)
    limits = [f"{bounds.requests} requests"] if bounds.requests else []
    limits += [f"{bounds.bytes / MIB:g} MiB"] if bounds.bytes else []
    message = f"queue full for class {service.name_of(priority)!r} of {_name(service)} ({' / '.join(limits)})"
    return _too_many(service, "queue_full", message, RETRY_AFTER_SECONDS)


def all_queues_full(service: Service, requests: int, size: int) -> Refusal:
    """The limits of all services together: `requests` and `size` bytes."""
    message = f"the queues of this gateway pod are full ({requests} requests / {size / MIB:g} MiB for all services)"
    return _too_many(service, "queue_full", message, RETRY_AFTER_SECONDS)


def displaced(service: Service) -> Refusal:
    message = f"the queue of {_name(service)} is full and a request of a higher priority took this one's place"
    return _too_many(service, "displaced", message, RETRY_AFTER_SECONDS)


def draining(service: Service) -> Refusal:
    message = f"this gateway pod shuts down and no longer queues requests for {_name(service)}"
    return _unavailable(service, "gateway_draining", message)


def unready(service: Service) -> Refusal:
    if not service.weights:
        message = f"InferenceService {_name(service)} is not ready: no revision serves yet (.status.traffic is empty)"
        return _unavailable(service, "service_not_ready", message)
    revisions = ", ".join(revision for revision, weight in service.weights if weight > 0)
    return _unavailable(
        service,
        NO_READY_POD,
        f"InferenceService {_name(service)} has no ready pod of a revision with traffic ({revisions})",
    )


def outside_subset(service: Service, addresses: int) -> Refusal:
    """The gateway in front named pods by a subset hint. Waiting would not help: the next request brings a newer hint."""
    message = (
        f"none of the {addresses} endpoints that the gateway in front named in its subset hint is a ready pod of "
        f"{_name(service)} with traffic"
    )
    return _unavailable(service, NO_POD_IN_SUBSET, message)


def _too_many(service: Service, code: str, message: str, wait_seconds: int) -> Refusal:
    return Refusal(
        429,
        "rate_limit_error",
        code,
        f"{message}; retry in {wait_seconds} s",
        retry_after=wait_seconds,
        service=service.key,
    )


def _unavailable(service: Service, code: str, message: str) -> Refusal:
    return Refusal(
        503,
        "server_error",
        code,
        f"{message}; retry in {RETRY_AFTER_SECONDS} s",
        retry_after=RETRY_AFTER_SECONDS,
        service=service.key,
    )


def _name(service: Service) -> str:
    return f"{service.namespace}/{service.name}"
