"""What the status page remembers of a service beside its object: the pods as the last decision saw them, replicas over
time and the judged percentiles of the running rollout over time. Bounded, pure; never reads a clock and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagefleet_operator.domain.scaling.load import is_fresh
from pagefleet_operator.domain.status.observation import Observation, PodReading, SpareReading
from pagefleet_operator.domain.status.status import SignalRecord, Status

MAX_PODS = 256
MAX_CHANGES = 240
KEPT_SECONDS = 6 * 3600.0
MAX_POINTS = 180
POINT_SECONDS = 5.0


@dataclass(frozen=True)
class PodNow:
    """One pod. `used` is the share of its KV pages in use. It is None, like `waiting` and `running`, when the engine was not
    read lately."""

    name: str
    revision: str
    state: str  # Ready | Starting | Asleep (a spare) | Stopping | the reason of its fault
    waiting: int | None = None
    running: int | None = None
    used: float | None = None
    prefill: bool = False  # it computes prompts for others, and is no replica


@dataclass(frozen=True)
class Replicas:
    """Ready and desired replicas by revision from `time` on, until the next change."""

    time: float
    ready: Mapping[str, int]
    desired: Mapping[str, int]


@dataclass(frozen=True)
class Interval:
    """A percentile in seconds and its interval of 95 %; None where it is not known."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Point:
    """One signal in one stratum at `time`."""

    time: float
    signal: str
    stratum: str
    stable: Interval
    canary: Interval


@dataclass(frozen=True)
class Snapshot:
    """One service. `left_out` counts pods beyond MAX_PODS. `started` is when the rollout began that `points` belong to.

    `waiting` requests are queued in all replicas that were read lately, also in those left out, and `used` is the share of KV pages
    in use of the fullest one; both are None when none was read.
    """

    time: float
    pods: tuple[PodNow, ...] = ()
    left_out: int = 0
    replicas: tuple[Replicas, ...] = ()
    points: tuple[Point, ...] = ()
    started: float = 0.0
    held: int | None = None  # requests that wait in the gateways for a pod
    waiting: int | None = None
    used: float | None = None


def taken(before: Snapshot | None, observation: Observation, status: Status, now: float) -> Snapshot:
    """The next snapshot, after a decision at `now` that wrote `status`."""
    readings = sorted(observation.revisions.items())
    pods = tuple(_pod(pod, revision) for revision, reading in readings for pod in reading.pods)
    pods += tuple(_spare(spare, revision) for revision, reading in readings for spare in reading.spares)
    pods += tuple(
        replace(_pod(pod, revision), prefill=True) for revision, reading in readings for pod in reading.prefill
    )
    read = [pod for pod in pods if pod.waiting is not None and not pod.prefill]
    started = status.rollout.started
    points = before.points if before is not None and before.started == started else ()
    return Snapshot(
        time=now,
        pods=pods[:MAX_PODS],
        left_out=max(0, len(pods) - MAX_PODS),
        replicas=_replicas(before.replicas if before else (), status, now),
        points=_points(points, status.rollout.verdicts, now),
        started=started,
        held=observation.load.held if observation.load is not None else None,
        waiting=sum(pod.waiting or 0 for pod in read) if read else None,
        used=max((pod.used for pod in read if pod.used is not None), default=None),
    )


def _pod(pod: PodReading, revision: str) -> PodNow:
    load = pod.load
    if load is None or not is_fresh(pod):
        return PodNow(pod.name, revision, _state(pod))
    used = 1.0 - (load.kv_pages_free or 0) / load.kv_pages_total if load.kv_pages_total else None
    return PodNow(pod.name, revision, _state(pod), load.waiting, load.running, used)


def _spare(spare: SpareReading, revision: str) -> PodNow:
    shown = _pod(spare.pod, revision)
    return replace(shown, state="Asleep") if spare.asleep and not spare.opened and shown.state == "Starting" else shown


def _state(pod: PodReading) -> str:
    if pod.terminating:
        return "Stopping"
    if pod.ready:
        return "Ready"
    return pod.fault.reason if pod.fault is not None else "Starting"


def _replicas(before: tuple[Replicas, ...], status: Status, now: float) -> tuple[Replicas, ...]:
    """Add a change. The last change before the retained time stays: it is the state with which that time began."""
    records = [record for record in status.revisions if record.ready or record.desired]
    ready = {record.hash: record.ready for record in records}
    desired = {record.hash: record.desired for record in records}
    past = tuple(entry for entry in before if entry.time < now)
    if not past or (past[-1].ready, past[-1].desired) != (ready, desired):
        past = (*past, Replicas(now, ready, desired))
    old = sum(1 for entry in past if entry.time < now - KEPT_SECONDS)
    return past[max(0, old - 1) :][-MAX_CHANGES:]


def _points(before: tuple[Point, ...], verdicts: tuple[SignalRecord, ...], now: float) -> tuple[Point, ...]:
    """At most one point per signal and stratum in POINT_SECONDS, at most MAX_POINTS of each."""
    past = [point for point in before if point.time < now]
    for record in verdicts:
        if record.stable_p95 is None and record.canary_p95 is None:
            continue
        same = [point for point in past if (point.signal, point.stratum) == (record.signal, record.stratum)]
        if same and now - same[-1].time < POINT_SECONDS:
            continue
        if len(same) >= MAX_POINTS:
            past.remove(same[0])
        past.append(
            Point(
                now,
                record.signal,
                record.stratum,
                Interval(record.stable_p95, record.stable_low, record.stable_high),
                Interval(record.canary_p95, record.canary_low, record.canary_high),
            )
        )
    return tuple(past)
