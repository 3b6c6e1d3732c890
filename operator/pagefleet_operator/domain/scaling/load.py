"""Sums up a revision's pods for sizing, and keeps the sums as the revision's recent past. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.status.engine_load import total
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample

STALE_SECONDS = 15.0
SAMPLE_SECONDS = 5.0  # the least time between two samples of a history
HISTORY_SECONDS = 1800.0
HUNG_SECONDS = 90.0  # without a token, while the others are busy
BUSY = 4.0  # sequences on each of the others, in the mean: the least loaded replica would have got one of them


@dataclass(frozen=True)
class Totals:
    """A revision's pods, summed up.

    `starting` pods are created and not ready yet; `stuck` ones among them fit on no node. `refused` is the reason why no
    more pods can be created, "" when they can. `slots` are the sequences that a replica runs at once. `history` is older
    than `latest`, oldest first. `startups` are the start-up times that `ScalingRecord.learned` does not contain yet.
    `unread` names a serving pod whose load could not be read, with the cause. `hung` are serving pods that generate nothing although
    the others are busy; they are in no other number. `guessed` says that `latest` is an estimate of engines that report nothing.
    """

    latest: Sample
    starting: int = 0
    stuck: int = 0
    refused: str = ""
    slots: int | None = None
    history: tuple[Sample, ...] = ()
    startups: tuple[tuple[float, float], ...] = ()  # (time at which the pod became ready, seconds since its creation)
    unread: str = ""
    hung: tuple[str, ...] = ()
    guessed: bool = False
    ages: tuple[float, ...] = ()  # seconds since each starting pod without a fault was created

    @property
    def starting_for(self) -> float:
        """Seconds since the oldest starting pod without a fault was created; 0 without one."""
        return max(self.ages, default=0.0)


def totals(reading: RevisionReading, now: float) -> Totals:
    """The sums of a revision as it was read at `now`."""
    pods = [pod for pod in reading.pods if not pod.terminating]
    starting = [pod for pod in pods if not pod.ready]
    latest, hung = sample(reading, now), tuple[str, ...]()
    if latest.silent:
        hung = _hung(reading, latest)
        latest = sample(reading, now, hung)
    stuck = [pod for pod in starting if pod.fault is not None and pod.fault.is_placeless]
    return Totals(
        latest=latest,
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
        hung=hung,
        ages=tuple(now - pod.created for pod in starting if pod.fault is None),
        unread=next(
            (f"pod {pod.name}: {pod.load_error}" for pod in _serving(reading) if pod.load_error and not is_fresh(pod)),
            "",
        ),
    )


def sample(reading: RevisionReading, now: float, without: Collection[str] = ()) -> Sample:
    """The load of the serving pods, warm spares that stand in for replicas among them, but of those that `without` names."""
    serving = [pod for pod in _serving(reading) if pod.name not in without]
    read = [pod for pod in serving if pod.load is not None and is_fresh(pod)]
    fresh = [pod.load for pod in read if pod.load is not None]
    return Sample(
        time=now,
        serving=len(serving),
        fresh=len(fresh),
        load=total(fresh),
        unqueued=sum(1 for load in fresh if not load.waiting),
        silent=frozenset(pod.name for pod in read if pod.load is not None and pod.load.tokens == 0),
    )


def _hung(reading: RevisionReading, latest: Sample) -> tuple[str, ...]:
    """The serving pods that have generated nothing for HUNG_SECONDS while each of the others had BUSY sequences or more.

    A gateway sends requests to the least loaded pod. So a pod that works gets one of them, and generates tokens, whatever load it
    reports. It is a replica again with its first token.
    """
    past = [one for one in reading.history if latest.time - HUNG_SECONDS <= one.time < latest.time]
    if not past or past[0].time > latest.time - HUNG_SECONDS + 2 * SAMPLE_SECONDS:
        return ()
    silent = latest.silent.intersection(*(one.silent for one in past))
    others = [one.fresh - len(silent) for one in past]
    if (
        not silent
        or min(others) < 1
        or any(one.load.running < BUSY * count for one, count in zip(past, others, strict=True))
    ):
        return ()
    return tuple(sorted(silent))


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
