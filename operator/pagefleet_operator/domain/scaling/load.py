"""A revision's pods summed up for sizing, and kept as its recent past. Sums only; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.domain.status.engine_load import total
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample

STALE_SECONDS = 15.0
SAMPLE_SECONDS = 5.0  # two samples of a history are at least so far apart
KEPT_SECONDS = 1800.0


@dataclass(frozen=True)
class Totals:
    """A revision as sizing sees it.

    `starting` pods are created and not ready yet, `stuck` ones among them fit on no node; `refused` says why more cannot
    be had ("" when they can). `slots`: sequences that a replica runs at once. `history` is older than `latest`, oldest first. `startups` are seconds from created to ready of the pods that
    became ready after the last decision that learned from some (`ScalingRecord.learned`), with when they did.
    """

    latest: Sample
    starting: int = 0
    stuck: int = 0
    refused: str = ""
    slots: int | None = None
    history: tuple[Sample, ...] = ()
    startups: tuple[tuple[float, float], ...] = ()  # (when it became ready, seconds from created to ready)


def totals(found: RevisionReading, now: float) -> Totals:
    pods = [pod for pod in found.pods if not pod.terminating]
    starting = [pod for pod in pods if not pod.ready]
    stuck = [pod for pod in starting if pod.fault is not None and pod.fault.reason == "Unschedulable"]
    return Totals(
        latest=sample(found, now),
        starting=len(starting),
        stuck=len(stuck),
        refused=found.refused or next((pod.fault.message for pod in stuck if pod.fault), ""),
        slots=found.slots,
        history=found.history,
        startups=tuple(
            (pod.ready_since, pod.startup)
            for pod in pods
            if pod.ready and pod.startup is not None and pod.ready_since is not None
        ),
    )


def sample(found: RevisionReading, now: float) -> Sample:
    pods = (*found.pods, *(spare.pod for spare in found.spares))
    serving = [pod for pod in pods if pod.ready and not pod.terminating]
    fresh = [pod for pod in serving if is_fresh(pod)]
    loads = [pod.load for pod in fresh if pod.load is not None]
    return Sample(
        time=now,
        serving=len(serving),
        fresh=len(fresh),
        load=total(loads),
        unqueued=sum(1 for load in loads if not load.waiting),
    )


def remember(history: tuple[Sample, ...], latest: Sample) -> tuple[Sample, ...]:
    """The history with one more sample, without what is too old or lies in the future of a clock that was set back."""
    kept = tuple(s for s in history if latest.time - KEPT_SECONDS <= s.time < latest.time)
    if kept and latest.time - kept[-1].time < SAMPLE_SECONDS:
        return kept
    return (*kept, latest)


def is_fresh(pod: PodReading) -> bool:
    """Whether the pod's load was read lately. A number of KV pages without the other one is no reading."""
    if pod.load is None or pod.load_age is None:
        return False
    pages = (pod.load.kv_pages_free is None) == (pod.load.kv_pages_total is None)
    return pages and pod.load_age <= STALE_SECONDS
