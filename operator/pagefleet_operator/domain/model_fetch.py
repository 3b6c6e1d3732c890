"""How far the fetch of a revision's model is, as a condition: "41 of 140 GB, about 6 minutes left". Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pagefleet_operator.domain.status.condition import FALSE, TRUE, NewCondition
from pagefleet_operator.domain.status.observation import FetchReading, PodReading
from pagefleet_operator.domain.status.status import Condition

TYPE, FETCHING, FETCHED, STALLED = "ModelFetched", "Fetching", "Fetched", "Stalled"
# A condition's change is a write to the API server: a fetch is shown in so many steps.
STEPS = 50
MINUTE = 60.0
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def condition(pods: Iterable[tuple[str, PodReading]], before: Condition | None) -> list[NewCondition]:
    """The condition of the pods in use, each after its revision's hash; [] for a service that has never fetched a model. It tells of the
    slowest pod."""
    present = [(revision, pod) for revision, pod in pods if not pod.terminating]
    fetching = [(revision, pod) for revision, pod in present if pod.fetching]
    if not fetching:
        if before is None:
            return []
        if before.status == FALSE and not any(pod.fetched for _, pod in present):
            return [(TYPE, FALSE, before.reason, before.message)]  # its pods are gone, or wait
        return [(TYPE, TRUE, FETCHED, "the model's files are there, and their checksums are right")]
    known = [(revision, pod.fetch) for revision, pod in fetching if pod.fetch is not None]
    if not known:
        revision, pod = next((one for one in fetching if one[1].fault is not None), fetching[0])
        if pod.fault is not None:
            return [(TYPE, FALSE, STALLED, f"revision {revision}: {pod.fault.message}")]
        return [(TYPE, FALSE, FETCHING, f"revision {revision}: its model is being fetched")]
    revision, slowest = min(known, key=lambda one: (one[1].fetched / one[1].size, one[0]))
    amounts = f"revision {revision}: {_amounts(slowest)}"
    others = "" if len(fetching) == 1 else f" (the slowest of {len(fetching)} pods)"
    if slowest.speed is None:
        return [(TYPE, FALSE, FETCHING, f"{amounts}{others}")]
    if slowest.speed <= 0 and slowest.fetched < slowest.size:
        message = f"{amounts}{others}; nothing has arrived for a minute: look at the log of its container fetch"
        return [(TYPE, FALSE, STALLED, message)]
    if before is not None and before.reason == FETCHING and before.message.startswith(f"{amounts},"):
        return [(TYPE, FALSE, FETCHING, before.message)]
    return [(TYPE, FALSE, FETCHING, f"{amounts}, {_left(slowest, slowest.speed)}{others}")]


def _amounts(reading: FetchReading) -> str:
    """What is there of the whole, rounded down to a step."""
    step = reading.size / STEPS
    shown = math.floor(reading.fetched / step) * step
    scale, unit = next((one for one in UNITS if reading.size >= one[0]), UNITS[-1])
    digits = 0 if reading.size >= 20 * scale else 1
    return f"{shown / scale:.{digits}f} of {reading.size / scale:.{digits}f} {unit}"


def _left(reading: FetchReading, speed: float) -> str:
    if reading.fetched >= reading.size:
        return "the last checksums are compared"
    minutes = (reading.size - reading.fetched) / speed / MINUTE
    if minutes < 1:
        return "less than a minute left"
    if minutes < 90:
        return f"about {minutes:.0f} {_plural('minute', minutes)} left"
    return f"about {minutes / 60:.0f} {_plural('hour', minutes / 60)} left"


def _plural(noun: str, number: float) -> str:
    return noun if round(number) == 1 else f"{noun}s"


def of_type(conditions: Sequence[Condition]) -> Condition | None:
    """The condition as it is stored."""
    return next((one for one in conditions if one.type == TYPE), None)
