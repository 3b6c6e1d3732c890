"""Learns whether more replicas bring first tokens sooner: a target below the time of an idle replica would ask for more for ever.

A first token takes the time of its own prompt, and what the other requests on its replica add to that. So it is taken for a line over
the requests in flight on a replica. The load at which first tokens were late is one point, and a load that is clearly smaller, on more
replicas, is another. The line's value without load is the floor, which no number of replicas gets below. Where it lies above the target,
FACTOR times the floor is the target, until first tokens are within the spec's own again. Prompts change, so after some hours the target is
tried again. Decides nothing.
"""

from __future__ import annotations

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.status import ScalingRecord

RECENT_SECONDS = 60.0  # first tokens are those of so long
NEARLY_LATE = 0.8  # of target.ttft: above it nothing shrinks, and what was late is not forgotten
LESS = 1.5  # times: a load that is smaller by so much is another one
ALONE = 0.5  # requests in flight on a replica: another replica would hardly take one from it
SURELY_ABOVE, SURELY_BELOW = 1.1, 0.9  # of the target: a floor in between changes nothing that is known
RETRY_SECONDS = 6 * 3600.0
FACTOR = 2.0  # times the floor: the target in the place of one that cannot be reached


def learned(
    record: ScalingRecord, totals: Totals, first: float | None, target: float | None, now: float
) -> ScalingRecord:
    """The record with what the present first tokens show. `first` is None while they do not describe the serving replicas."""
    if first is None or target is None or (load := _in_flight(totals)) is None:
        return record
    if first <= target:
        return record if record.floor is None and first > NEARLY_LATE * target else _forgotten(record)
    if record.floor is not None:
        since = record.floor_since
        tried = since is None or not 0 <= now - since < RETRY_SECONDS or first < SURELY_BELOW * record.floor
        record = _forgotten(record) if tried else record
    if record.late_load is None or record.late_seconds is None or load > LESS * record.late_load:
        record = replace(record, late_load=round(load, 2), late_seconds=round(first, 3))
    floor = _floor(record, load, first)
    if floor is not None and record.floor is None and floor > SURELY_ABOVE * target:
        return replace(record, floor=round(floor, 3), floor_since=now)
    if floor is not None and record.floor is not None and floor < SURELY_BELOW * target:
        return replace(record, floor=None, floor_since=None)
    return record


def _forgotten(record: ScalingRecord) -> ScalingRecord:
    known = record.late_seconds is not None or record.floor is not None
    return replace(record, late_load=None, late_seconds=None, floor=None, floor_since=None) if known else record


def within_reach(scaling: Scaling, record: ScalingRecord) -> Scaling:
    """The scaling with a target that replicas can reach."""
    target = scaling.target.ttft
    if target is None or record.floor is None or FACTOR * record.floor <= target:
        return scaling
    return replace(scaling, target=replace(scaling.target, ttft=FACTOR * record.floor))


def unreachable(scaling: Scaling, record: ScalingRecord) -> str:
    """The words for a target of the spec that no number of replicas reaches; "" where there is none."""
    target = scaling.target.ttft
    if target is None or record.floor is None or record.floor <= target:
        return ""
    return (
        f"a first token takes about {record.floor:.2g} s on a replica without other requests, and the target is {target:g} s: more "
        "replicas cannot reach it, and none is added for it; raise it (spec.scaling.target.ttft, or the promise in spec.slo), shorten "
        "the prompts or use faster replicas"
    )


def _floor(record: ScalingRecord, load: float, first: float) -> float | None:
    """The time without load, by the line through both points; None while the loads are too much alike."""
    if load <= ALONE:
        return first
    if record.late_load is None or record.late_seconds is None or load * LESS > record.late_load:
        return None
    slope = max(0.0, record.late_seconds - first) / (record.late_load - load)
    return max(0.0, first - slope * load)


def _in_flight(totals: Totals) -> float | None:
    """The mean number of requests in flight on a replica; None where no reading shows it, or while nothing is in flight."""
    samples = [*totals.history, totals.latest]
    recent = [one for one in samples if one.fresh and one.time > totals.latest.time - RECENT_SECONDS]
    count = sum(one.load.running + one.load.waiting for one in recent)
    return count / sum(one.fresh for one in recent) if count else None
