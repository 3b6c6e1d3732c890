"""How many replicas a revision needs: by waiting requests per replica and by free KV pages.

Up at once; down one at a time, after fewer would have done for the whole stabilisation window, never in a panic and
never on a missing reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pagefleet_operator.domain.observation import PodReading, RevisionReading
from pagefleet_operator.domain.spec_scaling import Scaling
from pagefleet_operator.domain.status import ScalingRecord

STALE_SECONDS = 15.0


@dataclass(frozen=True)
class Wish:
    """`replicas` within the bounds; `message` says on what numbers, when it differs from what is there."""

    replicas: int
    record: ScalingRecord
    message: str = ""


def wish(found: RevisionReading, desired: int | None, before: ScalingRecord, scaling: Scaling, now: float) -> Wish:
    """`desired` is what was last decided (None before the first time): not what somebody else made of it since."""
    current = _bounded(desired if desired is not None else scaling.min, scaling)
    serving = [pod for pod in found.pods if pod.ready and not pod.terminating]
    fresh = [pod for pod in serving if _fresh(pod)]
    if not fresh:
        return Wish(current, replace(before, below_since=None))
    wanted, why = _wanted(fresh, scaling)
    if wanted > current:
        panic = wanted >= scaling.panic_threshold * len(serving)
        record = replace(before, below_since=None, panic_since=now if panic else before.panic_since)
        return Wish(wanted, record, f"{current} -> {wanted} replicas: {why}")
    panicking = before.panic_since is not None and now - before.panic_since < scaling.panic_window
    certain = len(fresh) == len(serving) == current
    if wanted == current or panicking or not certain:
        return Wish(current, replace(before, below_since=None))
    if before.below_since is None or before.below_since > now:
        return Wish(current, replace(before, below_since=now))
    if now - before.below_since < scaling.stabilization:
        return Wish(current, before)
    why = f"{why} for {now - before.below_since:.0f} s"
    record = replace(before, below_since=now, panic_since=None)
    return Wish(current - 1, record, f"{current} -> {current - 1} replicas: {why}")


def _wanted(pods: list[PodReading], scaling: Scaling) -> tuple[int, str]:
    """Replicas by each signal, extrapolated from the pods that were read; the larger wins."""
    waiting = sum(pod.waiting or 0 for pod in pods)
    total = sum(pod.total_pages or 0 for pod in pods)
    free = sum(pod.free_pages or 0 for pod in pods)
    used = (total - free) / total if total else 0.0
    by_queue = math.ceil(waiting / scaling.queue_depth)
    by_pages = math.ceil(len(pods) * used / (1 - scaling.free_pages) - 1e-9) if scaling.free_pages < 1 else scaling.max
    why = (
        f"{waiting} requests wait on {len(pods)} replicas (target {scaling.queue_depth:g} each), "
        f"{1 - used:.0%} of KV pages are free (target {scaling.free_pages:.0%})"
    )
    return _bounded(max(by_queue, by_pages, 1), scaling), why


def _fresh(pod: PodReading) -> bool:
    known = None not in (pod.waiting, pod.free_pages, pod.total_pages, pod.signals_age)
    return known and (pod.signals_age or 0.0) <= STALE_SECONDS


def _bounded(replicas: int, scaling: Scaling) -> int:
    return max(scaling.min, min(scaling.max, replicas))
