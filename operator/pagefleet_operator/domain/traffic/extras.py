"""What a plan gets on top for services that ask for it: the route of provider GatewayAPI, and what is said of the
fallback. Works on the finished plan, so a fault here takes nothing from the rollout. Pure."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.status.condition import FALSE, Stated, dated
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Condition, Status
from pagefleet_operator.domain.traffic import fallback as fallbacks
from pagefleet_operator.domain.traffic import gateway_api

SETTLING_SECONDS = 2.0
KINDS = (gateway_api.ACCEPTED, gateway_api.ENFORCED, fallbacks.KIND)


def added(plan: Plan, seen: Observation, parsed: Spec, now: float) -> Plan:
    """`plan` with the route and the conditions of those of KINDS that apply; each that turns bad is an Event."""
    routed = gateway_api.route(seen, parsed, plan.status)
    served = str(parsed.raw["model"].get("servedName", ""))
    fallback = fallbacks.state(seen.namespace, seen.name, served, seen.fallbacks)
    stated = (*routed.stated, *((fallback,) if fallback else ()))
    before = {condition.type: condition for condition in seen.status.conditions}
    journal = Journal(now)
    for entry in stated:
        _announce(entry, before.get(entry[0]), journal)
    conditions = tuple(dated(entry, before.get(entry[0]), seen.generation, now) for entry in stated)
    status = replace(
        plan.status,
        conditions=(*plan.status.conditions, *conditions),
        decisions=journal.log(plan.status.decisions),
        route=routed.record,
    )
    return replace(
        plan,
        status=status,
        delete=() if routed.settling else plan.delete,
        requeue=min(plan.requeue, SETTLING_SECONDS) if routed.settling else plan.requeue,
        events=(*plan.events, *journal.events),
        routes=routed.manifests,
        withdrawn=(*plan.withdrawn, *routed.withdrawn),
    )


def kept(plan: Plan, before: Status) -> Plan:
    """The spec cannot be used: the route stays as it is, and so does what was said of it."""
    old = tuple(condition for condition in before.conditions if condition.type in KINDS)
    return replace(plan, status=replace(plan.status, conditions=(*plan.status.conditions, *old)))


def _announce(stated: Stated, before: Condition | None, journal: Journal) -> None:
    kind, status, reason, message = stated
    known = before is not None and before.status == FALSE and before.message == message[:2000]
    if status == FALSE and not known:
        journal.note(f"{kind}False" if reason == kind else reason, message, warning=True)
