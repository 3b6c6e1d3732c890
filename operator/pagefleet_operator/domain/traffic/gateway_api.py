"""Provider GatewayAPI: the HTTPRoute and InferencePool that follow from the status, those to delete, and the conditions.

The route is a function of `.status.traffic`, so an operator that starts after a crash can restore it. With Services as
backends the split is in force when the gateway's controller has seen the route's generation; until then no revision is
deleted that may still get requests. With an InferencePool as backend the picker splits, by the status alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_contract.traffic import DEFAULT_RETRIES
from pagefleet_operator.domain.manifests.httproute import TrafficSplit, http_route, metadata_of
from pagefleet_operator.domain.manifests.inferencepool import inference_pool
from pagefleet_operator.domain.runtimes.catalog import adapter_of
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.schema.guard_signals import Source
from pagefleet_operator.domain.spec.traffic import Backend, GatewayApi, Parent, Provider
from pagefleet_operator.domain.status.condition import FALSE, TRUE, UNKNOWN, NewCondition
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
# Fields that only a picker can act on: a plain HTTPRoute to Services cannot express them.
PICKERS = ("circuitBreaker", "queue", "priorities", "peak", "rateLimits", "firstTokenTimeout", "nextTokenTimeout")


@dataclass(frozen=True)
class Routing:
    """The routing part of a plan.

    `manifests` are applied in this order right after the status, then the `withdrawn` objects are deleted. `record`
    becomes `.status.route`. While `settling`, no revision is deleted, nor while the route is `stuck`: it leads to Services, and cannot be
    written.
    """

    manifests: tuple[Mapping[str, object], ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    conditions: tuple[NewCondition, ...] = ()
    record: RouteRecord | None = None
    settling: bool = False
    stuck: bool = False


def route(observation: Observation, spec: Spec, status: Status) -> Routing:
    """Make the routing that follows from `status`, the status that is about to be written."""
    settings, reading = spec.traffic.gateway_api, observation.gateway_api
    if spec.traffic.provider is not Provider.GATEWAY_API or settings is None:
        return _without(observation, reading)
    if reading is None:
        stuck = _leads_to_services(observation)
        return Routing(conditions=_unread(observation), record=observation.status.route, stuck=stuck)
    free = reading.features.pool and not _is_anothers(reading.pool, observation)
    backend = settings.backend or (Backend.POOL if free else Backend.SERVICE)
    pool = backend is Backend.POOL
    refused = _missing(settings, reading) or _name_taken(observation, reading, pool=pool)
    if refused is not None:
        stuck = reading.route is not None and _leads_to_services(observation)
        return Routing(conditions=(refused,), record=observation.status.route, stuck=stuck)
    metadata = metadata_of(observation.namespace, observation.name, observation.uid)
    manifests: list[Mapping[str, object]] = []
    if pool:
        manifests.append(inference_pool(metadata, reading.features.pool, settings.picker))
    split = _split(observation, spec, status)
    if pool or split.weights:
        manifests.append(http_route(metadata, settings, reading.features, split, spec.traffic.timeout, pool=pool))
    settling = not pool and _lags(reading.route)
    keep_pool = pool or settling
    return Routing(
        manifests=tuple(manifests),
        withdrawn=() if keep_pool else _withdraw_pool(observation, reading),
        conditions=(
            _accepted(observation.namespace, reading, settings, pool=pool),
            _enforced(spec, observation, reading, split, pool=pool),
        ),
        record=RouteRecord(backend.value),
        settling=settling,
    )


def _unread(observation: Observation) -> tuple[NewCondition, ...]:
    """The conditions while the Gateway API cannot be read: the stored ones stay."""
    before = tuple(
        (stored.type, stored.status, stored.reason, stored.message)
        for stored in observation.status.conditions
        if stored.type in (ACCEPTED, ENFORCED)
    )
    return before or ((ACCEPTED, UNKNOWN, "Unread", f"{PROVIDER}: the Gateway API's kinds cannot be read now"),)


def _without(observation: Observation, reading: GatewayApiReading | None) -> Routing:
    """Our own gateway splits: delete the objects of an earlier provider, and the record once none is left."""
    if reading is None:
        return Routing(record=observation.status.route, stuck=_leads_to_services(observation))
    route = _withdraw(reading.route, observation.uid, f"{ROUTE_GROUP}/{reading.features.route}", ROUTE_KIND)
    withdrawn = (*route, *_withdraw_pool(observation, reading))
    return Routing(withdrawn=withdrawn, record=observation.status.route if withdrawn else None)


def _withdraw_pool(observation: Observation, reading: GatewayApiReading) -> tuple[Withdrawal, ...]:
    return _withdraw(reading.pool, observation.uid, f"{POOL_GROUP}/{reading.features.pool}", POOL_KIND)


def _withdraw(live: LiveObject | None, uid: str, version: str, kind: str) -> tuple[Withdrawal, ...]:
    """Delete a live object if it is this service's own."""
    return (Withdrawal(version, kind, live.name, live.uid),) if live is not None and live.owner == uid else ()


def _missing(settings: GatewayApi, reading: GatewayApiReading) -> NewCondition | None:
    if not reading.features.route:
        message = f"{PROVIDER}: GatewayAPI needs {ROUTE_KIND} ({ROUTE_GROUP}), which this cluster does not serve: "
        return (ACCEPTED, FALSE, "NotInstalled", message + "install the Gateway API's CRDs, v1.0 or later")
    if settings.backend is Backend.POOL and not reading.features.pool:
        message = f"{BACKEND}: InferencePool ({POOL_GROUP}/v1) is not served by this cluster: "
        return (ACCEPTED, FALSE, "NotInstalled", message + "install the Inference Extension's CRDs, or use Service")
    return None


def _leads_to_services(observation: Observation) -> bool:
    """Whether a route was written that leads to the Services of revisions: they need their pods until it is written anew."""
    record = observation.status.route
    return record is not None and record.backend == Backend.SERVICE.value


def _is_anothers(live: LiveObject | None, observation: Observation) -> bool:
    return live is not None and live.owner != observation.uid


def _name_taken(observation: Observation, reading: GatewayApiReading, *, pool: bool) -> NewCondition | None:
    """A pool of that name is in the way only of a route that leads to one (`pool`)."""
    for live, kind in ((reading.route, ROUTE_KIND), *(((reading.pool, POOL_KIND),) if pool else ())):
        if live is not None and _is_anothers(live, observation):
            message = f"{PROVIDER}: there is a {kind} {observation.namespace}/{live.name} already, which is not this service's"
            return (ACCEPTED, FALSE, "NameTaken", f"{message}: rename or delete it")
    return None


def _split(observation: Observation, spec: Spec, status: Status) -> TrafficSplit:
    """Split as the picker does: leave a revision without a ready pod out while another one has some."""

    def ready(revision: str) -> bool:
        reading = observation.revisions.get(revision)
        return reading is not None and reading.ready > 0

    weights = tuple((entry.revision, entry.weight) for entry in status.traffic if entry.weight)
    live = tuple(entry for entry in weights if ready(entry[0]))
    mirror = status.mirror
    return TrafficSplit(
        weights=live or weights,
        canary=status.canary if status.canary and ready(status.canary) else "",
        canary_header=spec.rollout.route.header,
        mirror=(mirror.revision, mirror.percent) if mirror and ready(mirror.revision) else None,
    )


def _lags(live: LiveObject | None) -> bool:
    """Whether some controller of the route has not yet seen its present generation."""
    return live is not None and any(_is_behind(report, live) for report in live.parent_statuses)


def _accepted(namespace: str, reading: GatewayApiReading, settings: GatewayApi, *, pool: bool) -> NewCondition:
    if reading.route is None or (pool and reading.pool is None):
        return (ACCEPTED, UNKNOWN, "Written", "the route is being written")
    waiting = []
    for index, parent in enumerate(settings.parents):
        where, name = f"{PARENTS}[{index}]", f"{parent.kind} {parent.name}"
        parent_statuses = [report for report in reading.route.parent_statuses if _is_of(report, parent, namespace)]
        for report in parent_statuses:
            if report.accepted is False or report.resolved is False:
                return (ACCEPTED, FALSE, report.reason or "NotAccepted", f"{where}: {name}: {report.message}")
        if not parent_statuses or any(
            one.accepted is None or _is_behind(one, reading.route) for one in parent_statuses
        ):
            waiting.append(f"{where}: {name}")
    for report in reading.pool.parent_statuses if pool and reading.pool is not None else ():
        if report.accepted is False or report.resolved is False:
            message = f"{PARENTS}: {POOL_KIND} at {report.parent}: {report.message}"
            return (ACCEPTED, FALSE, report.reason or "PoolNotAccepted", message)
    if waiting:
        return (ACCEPTED, UNKNOWN, "Pending", f"no gateway controller has reported yet on {', '.join(waiting)}")
    backends = "its InferencePool" if pool else "the revisions' Services"
    return (ACCEPTED, TRUE, "Accepted", f"every parent has accepted the route to {backends}")


def _is_of(report: ParentStatus, parent: Parent, namespace: str) -> bool:
    """Whether a report is about this parent. Controllers may write out a namespace that the route leaves out."""
    return (
        report.parent == parent.name
        and (report.namespace or namespace) == (parent.namespace or namespace)
        and report.section == parent.section
        and report.port == parent.port
    )


def _is_behind(report: ParentStatus, live: LiveObject) -> bool:
    """Whether a report is about an earlier generation."""
    return report.observed_generation is not None and report.observed_generation < live.generation


def _enforced(
    spec: Spec, observation: Observation, reading: GatewayApiReading, split: TrafficSplit, *, pool: bool
) -> NewCondition:
    """Name each field of the spec that has no effect with this provider and backend."""
    traffic = observation.spec.get("traffic")
    written = traffic if isinstance(traffic, Mapping) else {}
    lost: list[str] = []
    if pool:
        # The gateway would refuse another service's pods, which are not in the pool.
        lost += ["spec.traffic.fallback"] if "fallback" in written else []
        lost += [f"spec.traffic.{name}" for name in ("firstTokenTimeout", "nextTokenTimeout") if name in written]
    else:
        lost += [f"spec.traffic.{name}" for name in (*PICKERS, "fallback") if name in written]
        # The API server writes the default out, so only another number was set by a person.
        lost += ["spec.traffic.retries"] if spec.traffic.retries != DEFAULT_RETRIES else []
        lost += ["spec.rollout.route.stickyBy"] if spec.rollout.route.sticky_by is not None else []
        lost += _split_lost(spec)
        lost += ["spec.scaling.idleToZero"] if spec.scaling.idle_to_zero is not None else []
        lost += ["spec.slo.objectives (nobody counts requests)"] if spec.slo.objectives else []
        lost += ["spec.slo.atRisk"] if spec.slo.at_risk is not None else []
        lost += ["spec.cost.budget.shed"] if spec.cost.budget is not None and spec.cost.budget.shed else []
        lost += (
            ["spec.rollout.guard (source Gateway measures nothing here; Engine and Prometheus do)"]
            if _measures(spec)
            else []
        )
    if not reading.features.timeouts:
        lost.append("spec.traffic.timeout (needs Gateway API v1.2)")
    if split.mirror and split.mirror[1] < 100 and not reading.features.mirror_share:
        lost.append("the mirror step of spec.rollout.steps (needs Gateway API v1.3)")
    if not lost:
        return (ENFORCED, TRUE, "Enforced", "every field of spec.traffic that is set has its effect")
    instead = "" if pool else "; an InferencePool backend or provider Gateway can do more"
    return (ENFORCED, FALSE, "NotEnforced", f"provider GatewayAPI has no effect for {', '.join(lost)}{instead}")


def _split_lost(spec: Spec) -> list[str]:
    """Nobody names a prefill pod, so that decode pods compute every prompt, where their engine can."""
    if spec.pods.engine.disaggregation is None:
        return []
    split = adapter_of(spec.pods).split
    without = " (without a picker its pods answer 503)" if split is not None and split.computes_all else ""
    return [f"spec.engine.disaggregation{without}"]


def _measures(spec: Spec) -> bool:
    """Whether the guard uses measurements of gateways; those of engines and Prometheus exist with every provider."""
    guard = spec.rollout.guard
    errors = guard.max_error_rate is not None and guard.error_source is Source.GATEWAY
    others = guard.max_fallback_rate, guard.max_throughput_decrease, guard.max_cost_increase
    limited = any(limit is not None for limit in others)
    return errors or limited or any(entry.source is Source.GATEWAY for entry in guard.latency)
