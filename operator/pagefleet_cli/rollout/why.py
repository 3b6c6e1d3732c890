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
    """Why nothing moves at this moment, the most important reason first."""
    seen, status = progress(service, now), service.get("status") or {}
    reasons = [*_unseen(service), *_pending(service), *_conditions(status), *_phase(seen, service)]
    firing = [alert for alert in status.get("alerts") or () if not alert.get("resolved")]
    reasons += [
        f"alert {alert.get('name', '')} fires since {clock(alert.get('startsAt'))} for "
        + (f"revision {alert['revision']}" if alert.get("revision") else "the service")
        for alert in firing
    ]
    return [_sentence(reason) for reason in reasons]


def pending(service: Document) -> Document | None:
    """The action that was asked for and has no outcome yet."""
    text = (service["metadata"].get("annotations") or {}).get(ACTION_ANNOTATION)
    try:
        asked = json.loads(text) if text else None
    except ValueError:
        return None
    answered = ((service.get("status") or {}).get("action") or {}).get("id")
    return asked if isinstance(asked, dict) and asked.get("id") != answered else None


def _unseen(service: Document) -> list[str]:
    observed, generation = (
        (service.get("status") or {}).get("observedGeneration", 0),
        service["metadata"].get("generation", 0),
    )
    if observed >= generation:
        return []
    return [
        f"the operator has not looked at the last change of the spec (generation {generation}, seen {observed}): "
        f"is it running? kubectl get pods -n {SYSTEM_NAMESPACE}"
    ]


def _pending(service: Document) -> list[str]:
    asked = pending(service)
    if asked is None:
        return []
    return [f"the operator has not answered {asked.get('action')} (asked by {asked.get('by', 'somebody')}) yet"]


def _conditions(status: Document) -> list[str]:
    """What the operator says is wrong with the service itself."""
    found = {entry["type"]: entry for entry in status.get("conditions") or ()}
    degraded = found.get("Degraded") or {}
    return [f"{degraded.get('reason')}: {degraded.get('message')}"] if degraded.get("status") == "True" else []


def _phase(seen: Progress, service: Document) -> list[str]:
    status = service.get("status") or {}
    rollout = status.get("rollout") or {}
    match seen.phase:
        case "Idle":
            return [f"revision {seen.stable} is stable and is what the spec asks for: there is nothing to do"]
        case "Starting":
            name = seen.canary or seen.stable
            ready, desired = seen.replicas.get(name, (0, 0))
            return [
                f"revision {name} has {ready} of {desired} pods ready, for {span(seen.held)}; it gets requests when one is"
            ]
        case "Promoting":
            canary, stable = seen.replicas.get(seen.canary, (0, 0)), seen.replicas.get(seen.stable, (0, 0))
            return [
                f"every step is passed; revision {seen.canary} has {canary[0]} ready pods and gets all requests when it "
                f"can carry them (stable {seen.stable} has {stable[0]})"
            ]
        case "Watching":
            return [f"revision {seen.stable} is promoted and still judged, for {span(seen.held)} so far"]
        case "RollingBack":
            ready, _ = seen.replicas.get(seen.stable, (0, 0))
            return [
                f"the canary is being rolled back as fast as {seen.stable} can carry its requests: {ready} of "
                f"{rollout.get('needed', '?')} pods are ready"
            ]
        case "RolledBack":
            return [_rejection(status)]
        case "Unknown":
            return ["the operator has not decided anything about this service yet"]
        case _:
            return _step(seen, rollout, service)


def _step(seen: Progress, rollout: Document, service: Document) -> list[str]:
    """A step is passed when its hold is over, its requests are there and the verdict is Passed."""
    command, reasons = f"pagefleet rollout resume {seen.name} -n {seen.namespace}", []
    number = next((index for index, step in enumerate(seen.steps) if step.place is Place.PRESENT), None)
    if seen.paused:
        reasons.append(f"it is held up by {seen.paused} ({command})")
    if number is None:
        return reasons or [f"phase {seen.phase}, for {span(seen.held)}"]
    step = seen.steps[number]
    name = f"step {number + 1} of {len(seen.steps)} ({step.text})"
    if step.text.endswith(UNTIL_RESUMED):
        return [*reasons, f"{name} waits for a person: {command}"]
    if step.hold is None:
        return [*reasons, f"{name} runs, for {span(seen.held)}"]
    if seen.remaining:
        reasons.append(f"{name} is held for another {span(seen.remaining)} ({span(seen.held)} of {span(step.hold)})")
    spec = ((service.get("spec") or {}).get("rollout") or {}).get("steps") or ()
    least = spec[number].get("minRequests", 0) if number < len(spec) else 0
    if rollout.get("requests", 0) < least:
        reasons.append(f"{name} needs {least} canary requests and has {rollout.get('requests', 0)}")
    if seen.outcome and seen.outcome != "Passed":
        wait = (rollout.get("verdict") or {}).get("expectedSeconds")
        soon = f"; expected in about {span(wait)}" if wait is not None else ""
        reasons.append(f"there is no verdict yet ({seen.outcome}): {seen.verdict}{soon}")
    ready, desired = seen.replicas.get(seen.canary, (0, 0))
    if not ready:
        reasons.append(f"revision {seen.canary} has {ready} of {desired} pods ready")
    return reasons or [
        f"{name} is over and its verdict is {seen.outcome or 'not asked for'}: it moves at the next look"
    ]


def _rejection(status: Document) -> str:
    found = status.get("rejected") or ()
    if not found:
        return "the last rollout was rolled back"
    last = found[-1]
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
