"""The warm spares: which of them are woken, released and put to sleep, and how many there are.

The decision uses observed data alone, so a restarted operator continues where the last one stopped.

Spares belong to the stable revision. They stand in for replicas that should serve and are not ready: the replicas that a
growing load has just asked for, the first replica of a service at zero, a replica that was lost with a drained node or
in a crash. The replica itself is started all the same. When it is ready, its stand-in is released: no more requests are
routed to the stand-in, its streams end, and it sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.status.observation import RevisionReading, SpareReading
from pagefleet_operator.domain.status.plan import SpareOrder, Withdrawal
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import SparesRecord
from pagefleet_operator.domain.status.turn import Journal, Turn

MIN_AWAKE_SECONDS = 30.0  # a replica whose readiness flaps does not wake and release its stand-in each time
PROPAGATION_SECONDS = 5.0  # after which every gateway knows that a spare is not ready any more


@dataclass(frozen=True)
class Spares:
    """The decision about the spares.

    `replicas` are those of the spares' Deployment by revision; a revision that is not named gets no Deployment.
    `withdrawn` are the Deployments to delete. `moving` says that the next decision is due soon.
    """

    replicas: Mapping[str, int]
    orders: tuple[SpareOrder, ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    record: SparesRecord | None = None
    moving: bool = False


def decide(turn: Turn, stage: Stage, replicas: Mapping[str, int], target: int | None) -> Spares:
    """Decide about the spares of the stable revision.

    `replicas` were decided for the revisions in use. `target` is the number of spares in the spec; it is None when the
    spec cannot be read, and the present spares stay.
    """
    observation, now = turn.observation, turn.now
    reading, serving = turn.reading(stage.stable), replicas.get(stage.stable, 0)
    count = _count(reading, bool(stage.traffic), serving, target)
    withdrawn = tuple(
        Withdrawal("apps/v1", "Deployment", f"{observation.name}-{name}-spare", other.spare_uid)
        for name, other in sorted(observation.revisions.items())
        if target is not None and other.spare_uid and (name != stage.stable or not target)
    )
    present = tuple(spare for spare in reading.spares if not spare.pod.terminating) if count else ()
    missing = max(0, serving - reading.own_ready)
    awake = _awake(present, missing, now)
    orders = tuple(order for spare in present if (order := _order(spare, spare in awake, now)) is not None)
    _note(stage.stable, orders, f"{missing} of {serving} replicas are not ready", turn.journal)
    return Spares(
        replicas={stage.stable: count} if count and target is not None else {},
        orders=orders,
        withdrawn=withdrawn,
        record=_record(stage.stable, reading, present, count) if count or target else None,
        moving=bool(orders) or any(spare.opened for spare in present),
    )


def _count(reading: RevisionReading, has_traffic: bool, serving: int, target: int | None) -> int:
    """New spares wait until every replica that should serve does, so that they take no node from a replica."""
    if target is None:
        return reading.spare_replicas or 0
    complete = has_traffic and reading.own_ready >= serving
    return target if complete or reading.spare_replicas is not None else 0


def _awake(present: tuple[SpareReading, ...], missing: int, now: float) -> tuple[SpareReading, ...]:
    """The spares that should be awake: one for each missing replica, and the spares that were woken just now.

    Spares that are awake already are taken first.
    """
    usable = [spare for spare in present if spare.loaded or spare.asleep is not None]
    usable.sort(key=lambda spare: (not spare.opened, not spare.loaded, spare.pod.name))
    recent = (spare for spare in usable[missing:] if spare.opened and _changed_within(spare, MIN_AWAKE_SECONDS, now))
    return (*usable[:missing], *recent)


def _order(spare: SpareReading, awake: bool, now: float) -> SpareOrder | None:
    """The order that a spare needs, None without one.

    An unknown state leads to no order. A spare is put to sleep only when no gateway sends requests to it any more.
    """
    name, address = spare.pod.name, spare.address
    if awake:
        if spare.opened and not spare.asleep:
            return None
        return SpareOrder(name, address, None if spare.opened else True, None if spare.asleep is False else False)
    if spare.opened:
        return SpareOrder(name, address, opened=False)
    if spare.asleep is False and spare.loaded and not _changed_within(spare, PROPAGATION_SECONDS, now):
        return SpareOrder(name, address, asleep=True)
    return None


def _changed_within(spare: SpareReading, seconds: float, now: float) -> bool:
    """Whether the gate changed less than `seconds` ago. A time in the future is from a clock that was set back."""
    return spare.since is not None and 0 <= now - spare.since < seconds


def _note(revision: str, orders: tuple[SpareOrder, ...], missing: str, journal: Journal) -> None:
    for order in orders:
        if order.opened is True:
            journal.note("SpareWoken", f"revision {revision}: spare {order.pod} is woken, because {missing}")
        elif order.opened is False:
            message = (
                f"revision {revision}: spare {order.pod} is released, because the replica it stood in for is ready"
            )
            journal.note("SpareReleased", message)


def _record(revision: str, reading: RevisionReading, present: tuple[SpareReading, ...], count: int) -> SparesRecord:
    faults = (spare.pod.fault.message for spare in present if spare.pod.fault is not None and not spare.opened)
    return SparesRecord(
        revision=revision,
        desired=count,
        asleep=sum(1 for spare in present if spare.asleep),
        awake=sum(1 for spare in present if spare.pod.ready),
        message=(reading.spare_refused or next(faults, ""))[:1000],
    )
