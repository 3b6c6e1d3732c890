"""What provider GatewayAPI asks for: the HTTPRoute and InferencePool that follow from the status, what is to be taken
away, and what to tell people. Pure.

The status decides and the route follows it: the route is a function of `.status.traffic`, so whoever reads one after a
crash can mend the other. With Services behind it the split is in force when the gateway's controller has seen the
route's generation; until then no revision that it may still send requests to is deleted. With an InferencePool behind
it the picker splits, by the status alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.traffic import DEFAULT_RETRIES
from pagefleet_operator.domain.manifests.httproute import Split, http_route, metadata_of
from pagefleet_operator.domain.manifests.inferencepool import inference_pool
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.spec.traffic import Backend, GatewayApi, Parent, Provider
from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, Stated
from pagefleet_operator.domain.status.gateway_api import (
    POOL_GROUP,
    POOL_KIND,
    ROUTE_GROUP,
    ROUTE_KIND,
    GatewayApiReading,
    LiveObject,
    ParentStatus,
)
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Withdrawal
from pagefleet_operator.domain.status.status import RouteRecord, Status

ACCEPTED, ENFORCED = "RouteAccepted", "TrafficEnforced"
PROVIDER, BACKEND = "spec.traffic.provider", "spec.traffic.gatewayAPI.backend"
PARENTS = "spec.traffic.gatewayAPI.parentRefs"
# What only a picker can do; a plain HTTPRoute to Services has no words for it.
PICKERS = ("circuitBreaker", "queue", "priorities", "rateLimits", "firstTokenTimeout", "nextTokenTimeout")


@dataclass(frozen=True)
class Routing:
    """`manifests` in the order in which they are applied, right after the status; `withdrawn` after them. `record` is
    what `.status.route` becomes. While `settling`, no revision is deleted."""

    manifests: tuple[Mapping[str, object], ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    stated: tuple[Stated, ...] = ()
    record: RouteRecord | None = None
    settling: bool = False


def route(seen: Observation, parsed: Spec, status: Status) -> Routing:
    """`status` is the one that is about to be written."""
    told, found = parsed.traffic.gateway_api, seen.gateway_api
    if parsed.traffic.provider is not Provider.GATEWAY_API or told is None:
        return _without(seen, found)
    if found is None:
        return Routing(stated=_unread(seen), record=seen.status.route)
    refused = _missing(told, found) or _taken(seen, found)
    if refused is not None:
        return Routing(stated=(refused,), record=seen.status.route)
    backend = told.backend or (Backend.POOL if found.features.pool else Backend.SERVICE)
    pool = backend is Backend.POOL
    metadata = metadata_of(seen.namespace, seen.name, seen.uid)
    manifests: list[Mapping[str, object]] = []
    if pool:
        manifests.append(inference_pool(metadata, found.features.pool, told.picker))
    split = _split(seen, parsed, status)
    if pool or split.weights:
        manifests.append(http_route(metadata, told, found.features, split, parsed.traffic.timeout, pool=pool))
    unused = () if pool else _owned(found.pool, seen.uid, f"{POOL_GROUP}/{found.features.pool}", POOL_KIND)
    settling = not pool and _lags(found.route)
    return Routing(
        tuple(manifests),
        () if settling else unused,
        (_accepted(seen.namespace, found, told, pool=pool), _enforced(parsed, seen, found, split, pool=pool)),
        RouteRecord(backend.value),
        settling=settling,
    )


def _unread(seen: Observation) -> tuple[Stated, ...]:
    """What was said before stays said."""
    before = tuple(
        (said.type, said.status, said.reason, said.message)
        for said in seen.status.conditions
        if said.type in (ACCEPTED, ENFORCED)
    )
    return before or ((ACCEPTED, UNKNOWN, "Unread", f"{PROVIDER}: the Gateway API's kinds cannot be read now"),)


def _without(seen: Observation, found: GatewayApiReading | None) -> Routing:
    """Our own gateway splits. What an earlier provider left is taken away; the record goes when nothing is left."""
    if found is None:
        return Routing(record=seen.status.route)
    gone = (
        *_owned(found.route, seen.uid, f"{ROUTE_GROUP}/{found.features.route}", ROUTE_KIND),
        *_owned(found.pool, seen.uid, f"{POOL_GROUP}/{found.features.pool}", POOL_KIND),
    )
    return Routing(withdrawn=gone, record=seen.status.route if gone else None)


def _owned(live: LiveObject | None, uid: str, version: str, kind: str) -> tuple[Withdrawal, ...]:
    return (Withdrawal(version, kind, live.name, live.uid),) if live is not None and live.owner == uid else ()


def _missing(told: GatewayApi, found: GatewayApiReading) -> Stated | None:
    if not found.features.route:
        message = f"{PROVIDER}: GatewayAPI needs {ROUTE_KIND} ({ROUTE_GROUP}), which this cluster does not serve: "
        return (ACCEPTED, FALSE, "NotInstalled", message + "install the Gateway API's CRDs, v1.0 or later")
    if told.backend is Backend.POOL and not found.features.pool:
        message = f"{BACKEND}: InferencePool ({POOL_GROUP}/v1) is not served by this cluster: "
        return (ACCEPTED, FALSE, "NotInstalled", message + "install the Inference Extension's CRDs, or use Service")
    return None


def _taken(seen: Observation, found: GatewayApiReading) -> Stated | None:
    for live, kind in ((found.route, ROUTE_KIND), (found.pool, POOL_KIND)):
        if live is not None and live.owner != seen.uid:
            message = f"{PROVIDER}: there is a {kind} {seen.namespace}/{live.name} already, which is not this service's"
            return (ACCEPTED, FALSE, "NameTaken", f"{message}: rename or delete it")
    return None


def _split(seen: Observation, parsed: Spec, status: Status) -> Split:
    """As the picker splits: a revision without a ready pod is left out while another one has some."""

    def ready(revision: str) -> bool:
        found = seen.revisions.get(revision)
        return found is not None and found.ready > 0

    weights = tuple((entry.revision, entry.weight) for entry in status.traffic if entry.weight)
    live = tuple(entry for entry in weights if ready(entry[0]))
    mirror = status.mirror
    return Split(
        weights=live or weights,
        canary=status.canary if status.canary and ready(status.canary) else "",
        canary_header=_told(parsed).get("header"),
        mirror=(mirror.revision, mirror.percent) if mirror and ready(mirror.revision) else None,
    )


def _lags(live: LiveObject | None) -> bool:
    """Whether a controller that serves the route has not seen its present generation yet."""
    if live is None:
        return False
    return any(
        answer.observed_generation is not None and answer.observed_generation < live.generation
        for answer in live.parent_statuses
    )


def _accepted(namespace: str, found: GatewayApiReading, told: GatewayApi, *, pool: bool) -> Stated:
    if found.route is None or (pool and found.pool is None):
        return (ACCEPTED, UNKNOWN, "Written", "the route is being written")
    waiting = []
    for index, parent in enumerate(told.parents):
        where, name = f"{PARENTS}[{index}]", f"{parent.kind} {parent.name}"
        parent_statuses = [answer for answer in found.route.parent_statuses if _is_of(answer, parent, namespace)]
        for answer in parent_statuses:
            if answer.accepted is False or answer.resolved is False:
                return (ACCEPTED, FALSE, answer.reason or "NotAccepted", f"{where}: {name}: {answer.message}")
        if not parent_statuses or any(a.accepted is None or _behind(a, found.route) for a in parent_statuses):
            waiting.append(f"{where}: {name}")
    for answer in found.pool.parent_statuses if pool and found.pool is not None else ():
        if answer.accepted is False or answer.resolved is False:
            message = f"{PARENTS}: {POOL_KIND} at {answer.parent}: {answer.message}"
            return (ACCEPTED, FALSE, answer.reason or "PoolNotAccepted", message)
    if waiting:
        return (ACCEPTED, UNKNOWN, "Pending", f"no gateway has answered yet for {', '.join(waiting)}")
    what = "its InferencePool" if pool else "the revisions' Services"
    return (ACCEPTED, TRUE, "Accepted", f"every parent has accepted the route to {what}")


def _is_of(answer: ParentStatus, parent: Parent, namespace: str) -> bool:
    """Controllers may write out the namespace that was left out."""
    return (
        answer.parent == parent.name
        and (answer.namespace or namespace) == (parent.namespace or namespace)
        and answer.section == parent.section
        and answer.port == parent.port
    )


def _behind(answer: ParentStatus, live: LiveObject) -> bool:
    return answer.observed_generation is not None and answer.observed_generation < live.generation


def _enforced(parsed: Spec, seen: Observation, found: GatewayApiReading, split: Split, *, pool: bool) -> Stated:
    """Names each field of the spec that nobody acts on in this mode."""
    traffic = seen.spec.get("traffic")
    written = traffic if isinstance(traffic, Mapping) else {}
    lost: list[str] = []
    if pool:
        # The gateway would refuse another service's pods, which are not in the pool.
        lost += ["spec.traffic.fallback"] if "fallback" in written else []
        lost += [f"spec.traffic.{name}" for name in ("firstTokenTimeout", "nextTokenTimeout") if name in written]
    else:
        lost += [f"spec.traffic.{name}" for name in (*PICKERS, "fallback") if name in written]
        # The API server writes the default out: only another number is somebody's wish.
        lost += ["spec.traffic.retries"] if parsed.traffic.retries != DEFAULT_RETRIES else []
        lost += ["spec.rollout.route.stickyBy"] if "stickyBy" in _told(parsed) else []
        lost += (
            ["spec.rollout.guard (source Gateway measures nothing here; Engine and Prometheus do)"]
            if _measures(parsed)
            else []
        )
    if not found.features.timeouts:
        lost.append("spec.traffic.timeout (needs Gateway API v1.2)")
    if split.mirror and split.mirror[1] < 100 and not found.features.mirror_share:
        lost.append("the mirror step of spec.rollout.steps (needs Gateway API v1.3)")
    if not lost:
        return (ENFORCED, TRUE, "Enforced", "every field of spec.traffic that is set has its effect")
    instead = "" if pool else "; an InferencePool backend or provider Gateway can do more"
    return (ENFORCED, FALSE, "NotEnforced", f"provider GatewayAPI has no effect for {', '.join(lost)}{instead}")


def _told(parsed: Spec) -> Mapping[str, Any]:
    """spec.rollout.route."""
    told: Mapping[str, Any] = (parsed.raw.get("rollout") or {}).get("route") or {}
    return told


def _measures(parsed: Spec) -> bool:
    """Whether the guard listens to gateways; what engines and Prometheus measure does not depend on the provider."""
    guard = parsed.rollout.guard
    errors = guard.max_error_rate is not None and guard.error_source is Source.GATEWAY
    return errors or any(entry.source is Source.GATEWAY for entry in guard.latency)
