"""Adds the route of provider GatewayAPI, the condition of the fallback and the claim on the model name to a finished plan. Pure.

It comes after the rollout's own plan, so that a fault here takes nothing from the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagefleet_contract import model_name as contract
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema.structure import at
from pagefleet_operator.domain.spec.traffic import Backend, Provider
from pagefleet_operator.domain.status.condition import FALSE, UNKNOWN, NewCondition, with_transition_time
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Condition, Phase, RouteRecord, Status
from pagefleet_operator.domain.status.turn import Journal, SpecTurn
from pagefleet_operator.domain.traffic import fallback as fallbacks
from pagefleet_operator.domain.traffic import gateway_api, model_name

SETTLING_SECONDS = 2.0
BACK = (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
KINDS = (gateway_api.ACCEPTED, gateway_api.ENFORCED, fallbacks.KIND, model_name.KIND)


def add(turn: SpecTurn, plan: Plan) -> Plan:
    """Add the route, and those conditions of KINDS that apply; each that turns False is an Event."""
    observation = turn.observation
    routed = gateway_api.route(observation, turn.spec, plan.status)
    served_name = _served_name(turn)
    fallback = fallbacks.state(observation.namespace, observation.name, served_name, observation.fallbacks)
    before = {condition.type: condition for condition in observation.status.conditions}
    key, granted = (observation.namespace, observation.name), observation.status.model_name
    claim = model_name.decide(key, served_name, granted, before.get(model_name.KIND), observation.model_name)
    stated = (_held(entry, plan.delete) for entry in routed.conditions) if routed.stuck else routed.conditions
    new = (*stated, *(entry for entry in (fallback, claim.condition) if entry))
    journal = Journal(turn.now)
    for entry in new:
        _announce(entry, before.get(entry[0]), journal)
    conditions = tuple(
        with_transition_time(entry, before.get(entry[0]), observation.generation, turn.now) for entry in new
    )
    status = replace(
        plan.status,
        conditions=(*plan.status.conditions, *conditions),
        decisions=journal.log(plan.status.decisions),
        route=routed.record,
        model_name=claim.granted,
    )
    return replace(
        plan,
        status=status,
        delete=() if routed.settling or routed.stuck else plan.delete,
        requeue=min(plan.requeue, SETTLING_SECONDS) if routed.settling else plan.requeue,
        events=(*plan.events, *journal.events),
        routes=routed.manifests,
        withdrawn=(*plan.withdrawn, *routed.withdrawn),
    )


def _held(condition: NewCondition, revisions: Sequence[str]) -> NewCondition:
    """The condition with the revisions that are not deleted because the route cannot be written: they cost accelerators."""
    kind, status, reason, message = condition
    if kind != gateway_api.ACCEPTED or not revisions:
        return condition
    kept = f"revision {', '.join(revisions)} keeps its pods until the route can be written"
    if status == FALSE:
        return (kind, status, reason, f"{message}; {kept}")
    return (kind, UNKNOWN, "Unread", f"{gateway_api.PROVIDER}: the route cannot be read now: {kept}")


def _served_name(turn: SpecTurn) -> str:
    """The name that the engines of the stable revision know, as it was when the claims on it were read; before there is one, the spec's."""
    status = turn.observation.status
    stable = [{"hash": one.hash, "spec": one.spec} for one in status.revisions if one.hash == status.stable]
    document = {"spec": turn.spec.raw, "status": {"stable": status.stable, "revisions": stable}}
    return contract.served_name(document)


def keep(observation: Observation, plan: Plan) -> Plan:
    """Keep the stored conditions of KINDS, and the route: the spec cannot be used. They hold in this generation too, because nothing of
    it is used. Only the way back is open, and a route to Services has to go it too."""
    generation = plan.status.observed_generation
    stored = tuple(
        replace(condition, observed_generation=generation)
        for condition in observation.status.conditions
        if condition.type in KINDS
    )
    status = replace(plan.status, conditions=(*plan.status.conditions, *stored))
    return replace(plan, status=status, routes=_way_back(observation, plan.status))


def _way_back(observation: Observation, status: Status) -> tuple[Mapping[str, object], ...]:
    """The route to Services of a service that was rolled back; () where spec.traffic itself cannot be used."""
    if status.route != RouteRecord(Backend.SERVICE.value) or status.rollout.phase not in BACK:
        return ()
    alone = parse({"model": {"source": "file:///"}, "traffic": at(observation.spec, ("traffic",))})
    if not isinstance(alone, Spec) or alone.traffic.provider is not Provider.GATEWAY_API:
        return ()
    routed = gateway_api.route(observation, alone, status)
    return routed.manifests if routed.record == status.route else ()


def _announce(new: NewCondition, before: Condition | None, journal: Journal) -> None:
    kind, status, reason, message = new
    announced = before is not None and before.status == FALSE and before.message == message[:2000]
    if status == FALSE and not announced:
        journal.note(f"{kind}False" if reason == kind else reason, message, warning=True)
