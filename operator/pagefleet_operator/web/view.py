"""What the status page shows, as plain JSON: a row per service for the fleet, and one service's page. Pure; reads the
object as the API server stores it and the snapshot of the last decision, and never fails on an odd object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from pagefleet_contract import strata
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.spec import parse
from pagefleet_operator.domain.spec.parse import Spec
from pagefleet_operator.domain.spec.schema.guard_signals import title
from pagefleet_operator.domain.spec.schema.slo import owner
from pagefleet_operator.domain.spec.schema.step_kinds import STEP_KINDS
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.records.capacity_plan import CapacityPlanRecord
from pagefleet_operator.domain.status.records.slo import ObjectiveRecord
from pagefleet_operator.domain.status.records.spending import SpendingRecord
from pagefleet_operator.domain.status.status import Phase, RolloutRecord, SignalRecord, Status
from pagefleet_operator.web.snapshot import Point, Snapshot

STALE_SECONDS = 60.0


class State(StrEnum):
    """The state of a service. The fleet is shown in this order, the worst state first."""

    DEGRADED = "Degraded"
    ROLLING_BACK = "Rolling back"
    ROLLED_BACK = "Rolled back"
    NOT_READY = "Not ready"
    PAUSED = "Paused"
    ROLLOUT = "Rolling out"
    ASLEEP = "Asleep"
    HEALTHY = "Healthy"


RANK = {state: rank for rank, state in enumerate(State)}
STEP_HEADLINES = {Phase(row.phase): row.headline for row in STEP_KINDS.values()}
IDLE = (Phase.IDLE, Phase.ROLLED_BACK, Phase.WATCHING)


def row(document: Mapping[str, Any], snapshot: Snapshot | None) -> dict[str, Any]:
    """One line of the fleet. `queue` and `used` are None when no pod of the service was read lately."""
    metadata, status = document["metadata"], codec.load(document.get("status"))
    health = state(status)
    left = [one.left for one in status.slo.objectives if one.left is not None] if status.slo is not None else []
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "model": _model(document),
        "state": health,
        "rank": RANK[health],
        "stable": status.stable,
        "canary": status.canary,
        "weight": next((entry.weight for entry in status.traffic if entry.revision == status.canary), 0),
        "ready": sum(record.ready for record in status.revisions),
        "desired": sum(record.desired for record in status.revisions),
        "queue": snapshot.waiting if snapshot else None,
        "used": snapshot.used if snapshot else None,
        "slo": min(left, default=None),
        "changed": status.decisions[-1].time if status.decisions else None,
    }


def state(status: Status) -> State:
    conditions = {condition.type: condition.status for condition in status.conditions}
    phase = status.rollout.phase
    if conditions.get("Degraded") == "True":
        return State.DEGRADED
    if phase is Phase.ROLLING_BACK:
        return State.ROLLING_BACK
    if phase is Phase.PAUSED or status.rollout.paused:
        return State.PAUSED
    if phase not in IDLE:
        return State.ROLLOUT
    if phase is Phase.ROLLED_BACK:
        return State.ROLLED_BACK
    if status.traffic and not any(record.desired for record in status.revisions):
        return State.ASLEEP
    return State.HEALTHY if conditions.get("Ready") == "True" else State.NOT_READY


def page(document: Mapping[str, Any], snapshot: Snapshot | None, now: float) -> dict[str, Any]:
    """Everything one service's page shows; times are UNIX seconds, shares are 0 to 1."""
    status, chosen = codec.load(document.get("status")), parse.parse(document.get("spec") or {})
    parsed = chosen if isinstance(chosen, Spec) else None
    weights = {entry.revision: entry.weight for entry in status.traffic}
    quantiles = {entry.signal: entry.quantile for entry in parsed.rollout.guard.latency} if parsed else {}
    return {
        **row(document, snapshot),
        "owner": asdict(owner(document.get("spec"))),
        "objectives": [_objective(one) for one in status.slo.objectives] if status.slo is not None else [],
        "spending": _spending(status.spending),
        "capacityPlan": _capacity_plan(status.capacity_plan),
        "headline": headline(status, len(parsed.rollout.steps) if parsed else 0),
        "conditions": [
            {"type": entry.type, "status": entry.status, "reason": entry.reason, "message": entry.message}
            for entry in status.conditions
        ],
        "revisions": [
            {"hash": record.hash, "role": _role(record.hash, status), "weight": weights.get(record.hash, 0),
             "ready": record.ready, "desired": record.desired, "created": record.created,
             "prefill": asdict(record.prefill) if record.prefill is not None else None}
            for record in status.revisions
            if record.hash in weights or record.ready or record.desired
        ],
        "verdict": asdict(status.rollout.verdict) if status.rollout.verdict else None,
        "signals": [_signal(record, quantiles.get(record.signal, 0.95)) for record in status.rollout.verdicts],
        "series": _series(snapshot.points if snapshot else ()),
        "pods": [asdict(pod) for pod in snapshot.pods] if snapshot else [],
        "leftOut": snapshot.left_out if snapshot else 0,
        "held": snapshot.held if snapshot else None,
        "read": snapshot.time if snapshot else None,
        "stale": snapshot is None or now - snapshot.time > STALE_SECONDS,
        "replicas": [asdict(entry) for entry in snapshot.replicas] if snapshot else [],
        "decisions": [
            {"time": entry.time, "kind": entry.kind, "message": sentence(entry.message)}
            for entry in reversed(status.decisions)
        ],
        "now": now,
    }  # fmt: skip


def _spending(record: SpendingRecord | None) -> dict[str, Any] | None:
    """The month's cost without its days; None without a budget."""
    if record is None:
        return None
    names = ("month", "state", "budget", "spent", "forecast", "shed", "resets")
    return {**{name: getattr(record, name) for name in names}, "perHour": record.per_hour}


def _capacity_plan(record: CapacityPlanRecord | None) -> list[dict[str, Any]]:
    """The numbers of the plan beside what is measured, null where that is not known."""
    names = ("name", "revision", "planned", "measured", "low", "high", "finding")
    return [{name: getattr(one, name) for name in names} for one in record.assumptions] if record is not None else []


def _objective(record: ObjectiveRecord) -> dict[str, Any]:
    """An objective without its days: `left` and `burn` are null while no request has counted."""
    names = ("name", "promise", "requests", "missed", "left", "burn")
    return {**{name: getattr(record, name) for name in names}, "runsOut": record.runs_out}


def headline(status: Status, steps: int) -> str:
    """The state of the service in a sentence or two."""
    rollout = status.rollout
    match rollout.phase:
        case Phase.IDLE:
            said = f"Revision {status.stable} serves all traffic." if status.stable else "Nothing serves yet."
        case Phase.WATCHING:
            said = f"Revision {status.stable} was promoted and is still watched against the one before."
        case Phase.ROLLED_BACK:
            said = f"The last rollout was rolled back. Revision {status.stable} serves."
        case Phase.ROLLING_BACK:
            said = f"Revision {status.canary} is rejected and its traffic goes back to {status.stable}."
        case Phase.RESTORING:
            said = f"Revision {status.stable} was stable before the service was restored, and is starting again."
        case Phase.STARTING:
            said = f"The pods of canary {status.canary} are starting."
        case Phase.PROMOTING:
            said = f"Canary {status.canary} passed every step; its replicas are being raised to carry all traffic."
        case _:
            said = STEP_HEADLINES[rollout.phase].format(
                canary=status.canary, weight=_canary_weight(status), step=_step(rollout, steps)
            )
    if rollout.paused and rollout.phase is not Phase.PAUSED:
        said += f" Held up by {rollout.paused}."
    return f"{said} {expectation(rollout)}".strip()


def expectation(rollout: RolloutRecord) -> str:
    """The verdict, or when to expect one; "" outside of a rollout that is judged."""
    verdict = rollout.verdict
    if rollout.phase in (Phase.IDLE, Phase.ROLLED_BACK) or verdict is None:
        return ""
    if verdict.outcome == "Regressed":
        return f"Verdict: {verdict.signal} has regressed."
    if verdict.outcome == "Passed":
        return "Verdict: no regression."
    if verdict.expected_seconds is None:
        return f"No verdict yet after {verdict.samples} requests."
    return f"No verdict yet; one is expected in about {duration(verdict.expected_seconds)}."


def duration(seconds: float) -> str:
    """A duration rounded for people: "40 s", "3 min", "2 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"


def sentence(text: str) -> str:
    """A capital first (a field's name, a path or a hash stays as it is) and a full stop."""
    text = text.strip()
    first = text.split(" ", 1)[0]
    if first.isalpha():
        text = text[:1].upper() + text[1:]
    return text if not text or text[-1] in ".!?" else f"{text}."


def _signal(record: SignalRecord, quantile: float) -> dict[str, Any]:
    return {
        **asdict(record),
        "title": title(record.signal),
        "slice": strata.title(record.stratum),
        "percentile": f"p{round(quantile * 100, 2):g}",
        "message": sentence("; ".join(text for text in (record.message, _source(record)) if text)),
    }


def _source(record: SignalRecord) -> str:
    return f"source {record.source}" if record.source else ""


def _series(points: tuple[Point, ...]) -> list[dict[str, Any]]:
    """Points by signal and stratum: [time, stable, low, high, canary, low, high], oldest first."""
    series: dict[tuple[str, str], list[list[float | None]]] = {}
    for point in points:
        stable, canary = point.stable, point.canary
        numbers = [point.time, stable.value, stable.low, stable.high, canary.value, canary.low, canary.high]
        series.setdefault((point.signal, point.stratum), []).append(numbers)
    return [
        {"signal": signal, "stratum": stratum, "title": title(signal),
         "slice": strata.title(stratum), "points": numbers}
        for (signal, stratum), numbers in series.items()
    ]  # fmt: skip


def _role(name: str, status: Status) -> str:
    if name == status.stable:
        return "stable"
    return "canary" if name == status.canary else "leaving"


def _canary_weight(status: Status) -> int:
    return next((entry.weight for entry in status.traffic if entry.revision == status.canary), 0)


def _step(rollout: RolloutRecord, steps: int) -> str:
    return f" (step {rollout.step + 1} of {steps})" if rollout.step < steps else ""


def _model(document: Mapping[str, Any]) -> str:
    model = revision_spec(document.get("spec")).model
    return str(model.served_name or model.source)
