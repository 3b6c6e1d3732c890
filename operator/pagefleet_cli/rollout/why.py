"""Why a rollout is where it is: the decision log in sentences, and what it waits for now. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_cli.base.words import clock, moment, span
from pagefleet_cli.rollout.progress import Place, Progress, progress
from pagefleet_contract.names import ACTION_ANNOTATION, SYSTEM_NAMESPACE
from pagefleet_operator.domain.spec.schema.step_kinds import UNTIL_RESUMED

Document = Mapping[str, Any]


def log(service: Document, now: float) -> list[str]:
    """The decisions, oldest first: when, how long ago, what and why."""
    lines = []
    for entry in (service.get("status") or {}).get("decisions") or ():
        at = moment(entry.get("time"))
        ago = f" ({span(now - at)} ago)" if at is not None else ""
        lines.append(f"{clock(entry.get('time'))}{ago}  {entry.get('kind', '')}: {_sentence(entry.get('message', ''))}")
    return lines


def waiting(service: Document, now: float) -> list[str]:
    """The reasons for the present wait, the most important first."""
    state, status = progress(service, now), service.get("status") or {}
    reasons = [*_unobserved(service), *_pending(service), *_conditions(status), *_phase(state, service)]
    firing = [alert for alert in status.get("alerts") or () if not alert.get("resolved")]
    reasons += [
        f"alert {alert.get('name', '')} fires since {clock(alert.get('startsAt'))} for "
        + (f"revision {alert['revision']}" if alert.get("revision") else "the service")
        for alert in firing
    ]
    return [_sentence(reason) for reason in reasons]


def pending(service: Document) -> Document | None:
    """The requested action that has no outcome yet."""
    text = (service["metadata"].get("annotations") or {}).get(ACTION_ANNOTATION)
    try:
        action = json.loads(text) if text else None
    except ValueError:
        return None
    answered = ((service.get("status") or {}).get("action") or {}).get("id")
    return action if isinstance(action, dict) and action.get("id") != answered else None


def _unobserved(service: Document) -> list[str]:
    observed, generation = (
        (service.get("status") or {}).get("observedGeneration", 0),
        service["metadata"].get("generation", 0),
    )
    if observed >= generation:
        return []
    return [
        f"the operator has not read the last change of the spec (generation {generation}, the operator is at {observed}): "
        f"is it running? kubectl get pods -n {SYSTEM_NAMESPACE}"
    ]


def _pending(service: Document) -> list[str]:
    action = pending(service)
    if action is None:
        return []
    return [f"the operator has not answered {action.get('action')} (asked by {action.get('by', 'somebody')}) yet"]


def _conditions(status: Document) -> list[str]:
    """The Degraded condition of the service, when it is True."""
    conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
    degraded = conditions.get("Degraded") or {}
    return [f"{degraded.get('reason')}: {degraded.get('message')}"] if degraded.get("status") == "True" else []


def _phase(state: Progress, service: Document) -> list[str]:
    status = service.get("status") or {}
    rollout = status.get("rollout") or {}
    match state.phase:
        case "Idle":
            return [f"revision {state.stable} is stable and is the revision of the spec: there is nothing to do"]
        case "Starting" | "Restoring":
            name = state.canary or state.stable
            ready, desired = state.replicas.get(name, (0, 0))
            own = state.prefill.get(name) if state.canary else None
            beside, whole = (
                (f" and {own[0]} of {own[1]} prefill pods", " and its prefill pods are") if own else ("", " is")
            )
            return [
                f"revision {name} has {ready} of {desired} pods{beside} ready, for {span(state.held)}; it gets requests when "
                f"one pod{whole} ready"
            ]
        case "Promoting":
            canary, stable = state.replicas.get(state.canary, (0, 0)), state.replicas.get(state.stable, (0, 0))
            return [
                f"every step is passed; revision {state.canary} has {canary[0]} ready pods and gets all requests when it "
                f"can carry them (stable {state.stable} has {stable[0]})"
            ]
        case "Watching":
            return [f"revision {state.stable} is promoted and still judged, for {span(state.held)} so far"]
        case "RollingBack":
            ready, _ = state.replicas.get(state.stable, (0, 0))
            return [
                f"the canary is being rolled back as fast as {state.stable} can carry its requests: {ready} of "
                f"{rollout.get('needed', '?')} pods are ready"
            ]
        case "RolledBack":
            return [_rejection(status)]
        case "Unknown":
            return ["the operator has not decided anything about this service yet"]
        case _:
            return _step(state, rollout, service)


def _step(state: Progress, rollout: Document, service: Document) -> list[str]:
    """A step is passed when its hold is over, its requests are there and the verdict is Passed."""
    command, reasons = f"pagefleet rollout resume {state.name} -n {state.namespace}", []
    number = next((index for index, step in enumerate(state.steps) if step.place is Place.PRESENT), None)
    if state.paused:
        reasons.append(f"it is paused by {state.paused} ({command})")
    if number is None:
        return reasons or [f"phase {state.phase}, for {span(state.held)}"]
    step = state.steps[number]
    name = f"step {number + 1} of {len(state.steps)} ({step.text})"
    if step.text.endswith(UNTIL_RESUMED):
        return [*reasons, f"{name} waits for a person: {command}"]
    if step.hold is None:
        return [*reasons, f"{name} runs, for {span(state.held)}"]
    if state.remaining:
        reasons.append(f"{name} is held for another {span(state.remaining)} ({span(state.held)} of {span(step.hold)})")
    spec = ((service.get("spec") or {}).get("rollout") or {}).get("steps") or ()
    minimum = spec[number].get("minRequests", 0) if number < len(spec) else 0
    if rollout.get("requests", 0) < minimum:
        reasons.append(f"{name} needs {minimum} canary requests and has {rollout.get('requests', 0)}")
    if state.outcome and state.outcome != "Passed":
        wait = (rollout.get("verdict") or {}).get("expectedSeconds")
        soon = f"; expected in about {span(wait)}" if wait is not None else ""
        reasons.append(f"there is no verdict yet ({state.outcome}): {state.verdict}{soon}")
    ready, desired = state.replicas.get(state.canary, (0, 0))
    if not ready:
        reasons.append(f"revision {state.canary} has {ready} of {desired} pods ready")
    return reasons or [
        f"{name} is over and its verdict is {state.outcome or 'not needed'}: it ends at the operator's next decision"
    ]


def _rejection(status: Document) -> str:
    rejected = status.get("rejected") or ()
    if not rejected:
        return "the last rollout was rolled back"
    last = rejected[-1]
    return (
        f"revision {last['hash']} was rolled back ({last['reason']}: {last.get('message', '')}) and is not tried again: "
        "change the spec, or `pagefleet rollout retry`"
    )


def _sentence(text: str) -> str:
    """A capital first, a full stop last."""
    whole = text.strip()
    if not whole:
        return ""
    return whole[0].upper() + whole[1:] + ("" if whole[-1] in ".!?" else ".")
