"""Which warm spares are woken, rested and put to sleep, and when there are any. Decides on what is observed alone, so a
restarted operator goes on where the last one stopped.

Spares belong to the stable revision and stand in for replicas that should serve and are not ready: those that a growing
load has just asked for, the first one of a service at zero, one that a node's drain or a crash took. The replica itself
is started all the same, and when it is ready its stand-in rests: requests no longer meet it, its streams end, it sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation, RevisionReading, SpareReading
from pagefleet_operator.domain.status.plan import SpareOrder, Withdrawal
from pagefleet_operator.domain.status.stage import Stage, reading
from pagefleet_operator.domain.status.status import SparesRecord

LEAST_AWAKE = 30.0  # a replica whose readiness flaps does not wake and rest its stand-in each time
HEARD_SECONDS = 5.0  # in which every gateway has seen that a spare is not ready any more


@dataclass(frozen=True)
class Spares:
    """`replicas` of the spares' Deployment by revision (none is written for one that is not named), `withdrawn`: the
    Deployments that are to go, `moving`: a decision is due soon."""

    replicas: Mapping[str, int]
    orders: tuple[SpareOrder, ...] = ()
    withdrawn: tuple[Withdrawal, ...] = ()
    record: SparesRecord | None = None
    moving: bool = False


def decide(
    seen: Observation,
    stage: Stage,
    replicas: Mapping[str, int],
    wanted: int | None,
    now: float,
    journal: Journal,
) -> Spares:
    """`replicas` were decided for the revisions in use; `wanted` None: the spec cannot be read, and what is there stays."""
    found, serving = reading(seen.revisions, stage.stable), replicas.get(stage.stable, 0)
    count = _count(found, bool(stage.traffic), serving, wanted)
    withdrawn = tuple(
        Withdrawal("apps/v1", "Deployment", f"{seen.name}-{name}-spare", other.spare_uid)
        for name, other in sorted(seen.revisions.items())
        if wanted is not None and other.spare_uid and (name != stage.stable or not wanted)
    )
    here = tuple(spare for spare in found.spares if not spare.pod.terminating) if count else ()
    missing = max(0, serving - found.own_ready)
    awake = _awake(here, missing, now)
    orders = tuple(order for spare in here if (order := _order(spare, spare in awake, now)) is not None)
    _tell(stage.stable, orders, f"{missing} of {serving} replicas are not ready", journal)
    return Spares(
        replicas={stage.stable: count} if count and wanted is not None else {},
        orders=orders,
        withdrawn=withdrawn,
        record=_record(stage.stable, found, here, count) if count or wanted else None,
        moving=bool(orders) or any(spare.opened for spare in here),
    )


def _count(found: RevisionReading, has_traffic: bool, serving: int, wanted: int | None) -> int:
    """New spares wait until every replica that should serve does: they take no node and no bandwidth from one."""
    if wanted is None:
        return found.spare_replicas or 0
    complete = has_traffic and found.own_ready >= serving
    return wanted if complete or found.spare_replicas is not None else 0


def _awake(here: tuple[SpareReading, ...], missing: int, now: float) -> tuple[SpareReading, ...]:
    """Those that should be awake: as many as replicas are missing, first those that are; and who was woken just now."""
    usable = [spare for spare in here if spare.loaded or spare.asleep is not None]
    usable.sort(key=lambda spare: (not spare.opened, not spare.loaded, spare.pod.name))
    recent = (spare for spare in usable[missing:] if spare.opened and _younger(spare, LEAST_AWAKE, now))
    return (*usable[:missing], *recent)


def _order(spare: SpareReading, awake: bool, now: float) -> SpareOrder | None:
    """What is not known is not acted on; a spare is put to sleep only when no gateway sends it anything any more."""
    name, address = spare.pod.name, spare.address
    if awake:
        if spare.opened and not spare.asleep:
            return None
        return SpareOrder(name, address, None if spare.opened else True, None if spare.asleep is False else False)
    if spare.opened:
        return SpareOrder(name, address, opened=False)
    if spare.asleep is False and spare.loaded and not _younger(spare, HEARD_SECONDS, now):
        return SpareOrder(name, address, asleep=True)
    return None


def _younger(spare: SpareReading, seconds: float, now: float) -> bool:
    """Whether the gate changed less than `seconds` ago; a time in the future is of a clock that was set back."""
    return spare.since is not None and 0 <= now - spare.since < seconds


def _tell(revision: str, orders: tuple[SpareOrder, ...], missing: str, journal: Journal) -> None:
    for order in orders:
        if order.opened is True:
            journal.note("SpareWoken", f"revision {revision}: spare {order.pod} is woken; {missing}")
        elif order.opened is False:
            journal.note("SpareRested", f"revision {revision}: spare {order.pod} rests; its replica serves")


def _record(revision: str, found: RevisionReading, here: tuple[SpareReading, ...], count: int) -> SparesRecord:
    faults = (spare.pod.fault.message for spare in here if spare.pod.fault is not None and not spare.opened)
    return SparesRecord(
        revision=revision,
        desired=count,
        asleep=sum(1 for spare in here if spare.asleep),
        awake=sum(1 for spare in here if spare.pod.ready),
        message=(found.spare_refused or next(faults, ""))[:1000],
    )
