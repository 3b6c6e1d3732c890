"""How many replicas a revision needs: by waiting requests per replica and by free KV pages.

Up at once; down one at a time, after fewer would have done for the whole stabilisation window, never in a panic and
never on a missing reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pagefleet_operator.domain.load import Totals, totals
from pagefleet_operator.domain.observation import RevisionReading
from pagefleet_operator.domain.sample import Sample, ServiceLoad
from pagefleet_operator.domain.spec_scaling import Scaling
from pagefleet_operator.domain.status import ScalingRecord


@dataclass(frozen=True)
class Wish:
    """`replicas` within the bounds; `message` says on what numbers, when it differs from what is there."""

    replicas: int
    record: ScalingRecord
    message: str = ""


def wish(
    found: RevisionReading,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    """`size` of a revision as the cluster has it."""
    return size(totals(found, now), load, desired, before, scaling, now)


def size(
    seen: Totals,
    load: ServiceLoad | None,
    desired: int | None,
    before: ScalingRecord,
    scaling: Scaling,
    now: float,
) -> Wish:
    """`desired` is what was last decided (None before the first time): not what somebody else made of it since.

    `before` is the record of the last decision about this revision; `load` is None when no gateway answered.
    """
    current = _bounded(desired if desired is not None else scaling.min, scaling)
    latest = seen.latest
    if not latest.fresh:
        return Wish(current, replace(before, below_since=None))
    wanted, why = _wanted(latest, scaling)
    if wanted > current:
        panic = wanted >= scaling.panic_threshold * latest.serving
        record = replace(before, below_since=None, panic_since=now if panic else before.panic_since)
        return Wish(wanted, record, f"{current} -> {wanted} replicas: {why}")
    panicking = before.panic_since is not None and now - before.panic_since < scaling.panic_window
    certain = latest.complete and latest.serving == current
    if wanted == current or panicking or not certain:
        return Wish(current, replace(before, below_since=None))
    if before.below_since is None or before.below_since > now:
        return Wish(current, replace(before, below_since=now))
    if now - before.below_since < scaling.stabilization:
        return Wish(current, before)
    why = f"{why} for {now - before.below_since:.0f} s"
    record = replace(before, below_since=now, panic_since=None)
    return Wish(current - 1, record, f"{current} -> {current - 1} replicas: {why}")


def _wanted(latest: Sample, scaling: Scaling) -> tuple[int, str]:
    """Replicas by each signal, extrapolated from the pods that were read; the larger wins."""
    used = latest.pages / latest.total_pages if latest.total_pages else 0.0
    by_queue = math.ceil(latest.waiting / scaling.queue_depth)
    by_pages = (
        math.ceil(latest.fresh * used / (1 - scaling.free_pages) - 1e-9) if scaling.free_pages < 1 else scaling.max
    )
    why = (
        f"{latest.waiting} requests wait on {latest.fresh} replicas (target {scaling.queue_depth:g} each), "
        f"{1 - used:.0%} of KV pages are free (target {scaling.free_pages:.0%})"
    )
    return _bounded(max(by_queue, by_pages, 1), scaling), why


def _bounded(replicas: int, scaling: Scaling) -> int:
    return max(scaling.min, min(scaling.max, replicas))
