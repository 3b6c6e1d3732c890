"""The progress of a rollout, read from an InferenceService. Pure. Every part of the status may be absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet_cli.base.tables import ready_and_desired
from pagefleet_cli.base.words import moment, span
from pagefleet_contract.names import ACTION_ANNOTATION
from pagefleet_contract.quantity import seconds
from pagefleet_operator.domain.spec.rollout import with_defaults
from pagefleet_operator.domain.spec.schema.step_kinds import OPTIONS, definition_of

Document = Mapping[str, Any]
PROMOTED = ("Idle", "Watching")  # the spec's revision serves; while watched it may still be rolled back
FAILED = ("RolledBack",)


class End(StrEnum):
    """How a rollout has ended; UNDER_WAY when it has not."""

    UNDER_WAY = "under way"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"


class Place(StrEnum):
    DONE = "done"
    PRESENT = "present"
    COMING = "coming"


@dataclass(frozen=True)
class Step:
    """`hold` in seconds; None: until a person resumes, or not known."""

    text: str
    place: Place
    hold: float | None


@dataclass(frozen=True)
class Side:
    """One signal on one revision: seconds. `low` and `high` bound `p95`; None: not measured."""

    samples: int
    p50: float | None
    p95: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Signal:
    name: str
    outcome: str
    stable: Side
    canary: Side
    message: str


@dataclass(frozen=True)
class Progress:
    """`held`: seconds of the present step; `remaining`: of its hold; `expected`: to the next move at the earliest, None
    unknown. `replicas` and `prefill` pods are ready and desired ones, by revision."""

    namespace: str
    name: str
    phase: str
    end: End
    stable: str
    canary: str
    weights: Mapping[str, int]
    replicas: Mapping[str, tuple[int, int]]
    prefill: Mapping[str, tuple[int, int]]  # without revisions that have none
    steps: tuple[Step, ...]
    signals: tuple[Signal, ...]
    outcome: str
    verdict: str
    held: float
    remaining: float | None
    expected: float | None
    paused: str


def progress(service: Document, now: float) -> Progress:
    """`now` in UNIX seconds."""
    status: Document = service.get("status") or {}
    rollout: Document = status.get("rollout") or {}
    verdict: Document = rollout.get("verdict") or {}
    phase = str(rollout.get("phase", "")) or "Unknown"
    present = int(rollout.get("step", 0))
    raw = _steps(service)
    steps = tuple(_step(entry, index, present, phase) for index, entry in enumerate(raw))
    held = _held(rollout, now)
    hold = next((step.hold for step in steps if step.place is Place.PRESENT), None)
    remaining = max(0.0, hold - held) if hold is not None else None
    return Progress(
        namespace=str(service["metadata"].get("namespace", "")),
        name=str(service["metadata"]["name"]),
        phase=phase,
        end=end(service),
        stable=str(status.get("stable", "")),
        canary=str(status.get("canary", "")),
        weights={entry["revision"]: int(entry["weight"]) for entry in status.get("traffic") or ()},
        replicas={entry["hash"]: ready_and_desired(entry) for entry in status.get("revisions") or ()},
        prefill={
            entry["hash"]: ready_and_desired(entry["prefill"])
            for entry in status.get("revisions") or ()
            if entry.get("prefill")
        },
        steps=steps,
        signals=_signals(rollout),
        outcome=str(verdict.get("outcome", "")),
        verdict=str(verdict.get("message", "")),
        held=held,
        remaining=remaining,
        expected=None if rollout.get("paused") else _expected(remaining, verdict),
        paused=_paused(service, str(rollout.get("paused", ""))),
    )


def end(service: Document) -> End:
    """Whether the rollout of the spec as it stands has ended, and how."""
    status: Document = service.get("status") or {}
    phase = (status.get("rollout") or {}).get("phase")
    if int(status.get("observedGeneration", 0)) < int(service["metadata"].get("generation", 0)):
        return End.UNDER_WAY
    if phase in PROMOTED:
        return End.PROMOTED
    return End.ROLLED_BACK if phase in FAILED else End.UNDER_WAY


def _expected(remaining: float | None, verdict: Document) -> float | None:
    """Seconds to the next move at the earliest. A hold that is over tells nothing while the guard does not know when it can judge."""
    wait = verdict.get("expectedSeconds")
    if wait is None and not remaining and verdict.get("outcome") == "Inconclusive":
        return None
    return max((value for value in (remaining, wait) if value is not None), default=None)


def _paused(service: Document, paused: str) -> str:
    """The cause of the pause: "alert NAME" unchanged, "action ID" with the person's name where that is known."""
    try:
        action = json.loads((service["metadata"].get("annotations") or {}).get(ACTION_ANNOTATION) or "null")
    except ValueError:
        return paused
    if isinstance(action, dict) and paused == f"action {action.get('id')}" and action.get("by"):
        return str(action["by"])
    return paused


def _steps(service: Document) -> list[Document]:
    rollout = (service.get("spec") or {}).get("rollout")
    steps: list[Document] = with_defaults(rollout or {})["steps"] or []
    return steps


def _step(raw: Document, index: int, present: int, phase: str) -> Step:
    if phase in (*PROMOTED, "Promoting"):
        place = Place.DONE
    elif phase in ("Starting", "Restoring", "Unknown", "RollingBack", *FAILED):
        place = Place.COMING
    else:
        place = Place.DONE if index < present else Place.PRESENT if index == present else Place.COMING
    text, hold = _described(raw)
    return Step(text, place, hold)


def _described(raw: Document) -> tuple[str, float | None]:
    """A step in words, and its shortest time in seconds; None: a person ends it, or the time is not known."""
    row = definition_of(raw)
    text = row.text(raw) if row else next((key for key in raw if key not in OPTIONS), "step")  # of a newer operator
    try:
        if row is None:
            return text, seconds(str(raw.get("hold", "0s")))
        return text, None if row.hold_is_limit else row.read(raw).hold
    except (ValueError, KeyError, TypeError, AttributeError):
        return text, None


def _held(rollout: Document, now: float) -> float:
    """Seconds of the present phase: what the operator has watched where it says so, else by the clock."""
    watched, since = rollout.get("held"), moment(rollout.get("since"))
    if watched:
        return float(watched) + max(0.0, now - (moment(rollout.get("ticked")) or now))
    return max(0.0, now - since) if since is not None else 0.0


def _signals(rollout: Document) -> tuple[Signal, ...]:
    """One for each signal and stratum; of an older operator, the one verdict."""
    verdicts = rollout.get("verdicts") or ()
    if verdicts:
        return tuple(_signal(entry) for entry in verdicts)
    verdict: Document = rollout.get("verdict") or {}
    if not verdict.get("signal") or verdict.get("stableSeconds") is None:
        return ()
    stable = Side(0, None, verdict.get("stableSeconds"), None, None)
    canary = Side(int(verdict.get("samples", 0)), None, verdict.get("canarySeconds"), None, None)
    return (Signal(verdict["signal"], verdict.get("outcome", ""), stable, canary, verdict.get("message", "")),)


def _signal(entry: Document) -> Signal:
    def side(of: str) -> Side:
        names = (f"{of}P50", f"{of}P95", f"{of}Low", f"{of}High")
        return Side(int(entry.get(f"{of}Samples", 0)), *(entry.get(name) for name in names))

    stratum = f" ({entry['stratum']})" if entry.get("stratum") else ""
    name = f"{entry.get('signal', '')}{stratum}"
    source = f"source {entry['source']}" if entry.get("source") else ""
    message = "; ".join(text for text in (entry.get("message", ""), source) if text)
    return Signal(name, entry.get("outcome", ""), side("stable"), side("canary"), message)


def sentence(state: Progress) -> str:
    """One plain line for a log or a pipe."""
    role = {state.stable: "stable", state.canary: "canary"}
    weights = ", ".join(f"{role.get(name, 'old')} {name} {weight} %" for name, weight in state.weights.items())
    parts = [f"{state.namespace}/{state.name}", state.phase]
    at = next((number for number, step in enumerate(state.steps, 1) if step.place is Place.PRESENT), None)
    if at and state.end is End.UNDER_WAY:
        parts.append(f"step {at} of {len(state.steps)}: {state.steps[at - 1].text}, held {span(state.held)}")
    parts.append(weights or "no traffic")
    if state.paused:
        parts.append(f"paused by {state.paused}")
    if state.outcome and state.canary:
        parts.append(f"{state.outcome}: {state.verdict}" if state.verdict else state.outcome)
    if state.expected is not None and state.end is End.UNDER_WAY:
        parts.append(f"next move in {span(state.expected)} at the earliest")
    return " | ".join(parts)
