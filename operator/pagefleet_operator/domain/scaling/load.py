"""Sums up a revision's pods for sizing, and keeps the sums as the revision's recent past. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.status.engine_load import total
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample

STALE_SECONDS = 15.0
SAMPLE_SECONDS = 5.0  # the least time between two samples of a history
HISTORY_SECONDS = 1800.0


@dataclass(frozen=True)
class Totals:
    """A revision's pods, summed up.

    `starting` pods are created and not ready yet; `stuck` ones among them fit on no node. `refused` is the reason why no
    more pods can be created, "" when they can. `slots` are the sequences that a replica runs at once. `history` is older
    than `latest`, oldest first. `startups` are the start-up times that `ScalingRecord.learned` does not contain yet.
    `unread` names a serving pod whose load could not be read, with the cause.
    """

    latest: Sample
    starting: int = 0
    stuck: int = 0
    refused: str = ""
    slots: int | None = None
    history: tuple[Sample, ...] = ()
    startups: tuple[tuple[float, float], ...] = ()  # (time at which the pod became ready, seconds since its creation)
    unread: str = ""


def totals(reading: RevisionReading, now: float) -> Totals:
    """The sums of a revision as it was read at `now`."""
    pods = [pod for pod in reading.pods if not pod.terminating]
    starting = [pod for pod in pods if not pod.ready]
    stuck = [pod for pod in starting if pod.fault is not None and pod.fault.reason == "Unschedulable"]
    return Totals(
        latest=sample(reading, now),
        starting=len(starting),
        stuck=len(stuck),
        refused=reading.refused or next((pod.fault.message for pod in stuck if pod.fault), ""),
        slots=reading.slots,
        history=reading.history,
        startups=tuple(
            (pod.ready_since, pod.startup)
            for pod in pods
            if pod.ready and pod.startup is not None and pod.ready_since is not None
        ),
        unread=next((f"pod {pod.name}: {pod.load_error}" for pod in _serving(reading) if pod.load_error), ""),
    )


def sample(reading: RevisionReading, now: float) -> Sample:
    """The load of the serving pods, warm spares that stand in for replicas among them."""
    serving = _serving(reading)
    fresh = [pod.load for pod in serving if pod.load is not None and is_fresh(pod)]
    return Sample(
        time=now,
        serving=len(serving),
        fresh=len(fresh),
        load=total(fresh),
        unqueued=sum(1 for load in fresh if not load.waiting),
    )


def _serving(reading: RevisionReading) -> Sequence[PodReading]:
    pods = (*reading.pods, *(spare.pod for spare in reading.spares))
    return [pod for pod in pods if pod.ready and not pod.terminating]


def remember(history: tuple[Sample, ...], latest: Sample) -> tuple[Sample, ...]:
    """Add a sample to the history; drop samples that are too old, or in the future of a clock that was set back."""
    retained = tuple(s for s in history if latest.time - HISTORY_SECONDS <= s.time < latest.time)
    if retained and latest.time - retained[-1].time < SAMPLE_SECONDS:
        return retained
    return (*retained, latest)


def is_fresh(pod: PodReading) -> bool:
    """Whether the pod's load was read lately. A number of KV pages without the other one is no reading."""
    if pod.load is None or pod.load_age is None:
        return False
    pages = (pod.load.kv_pages_free is None) == (pod.load.kv_pages_total is None)
    return pages and pod.load_age <= STALE_SECONDS
