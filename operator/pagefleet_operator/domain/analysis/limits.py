"""Limits of the guard that are not tests on requests: the floor under free KV pages, and PromQL gates."""

from __future__ import annotations

import math

from pagefleet_operator.domain.analysis.verdict import Judged, Outcome, blank, told, unknown
from pagefleet_operator.domain.spec.rollout import FreePages, Gate
from pagefleet_operator.domain.status.observation import GateReading, Observation
from pagefleet_operator.domain.status.stage import reading_of
from pagefleet_operator.domain.status.status import SignalRecord

STALE_SECONDS = 15.0
PAGES = "free pages"


def free_share(seen: Observation, revision: str) -> float | None:
    """The share of KV pages that are free or reclaimable on the ready pods; None when a pod's are not known."""
    free = total = 0
    serving = [pod for pod in reading_of(seen.revisions, revision).pods if pod.ready and not pod.terminating]
    for pod in serving:
        load = pod.load
        if (
            load is None
            or load.kv_pages_free is None
            or not load.kv_pages_total
            or (pod.load_age or 0.0) > STALE_SECONDS
        ):
            return None
        free, total = free + load.kv_pages_free, total + load.kv_pages_total
    return free / total if total else None


def low_since(
    seen: Observation, floor: FreePages | None, revision: str, before: float | None, now: float
) -> float | None:
    """Since when the revision has been short of pages; a missing reading changes nothing."""
    share = free_share(seen, revision) if floor else None
    if floor is None or share is None:
        return before if floor else None
    if share >= floor.least:
        return None
    return now if before is None or before > now else before


def pages(seen: Observation, floor: FreePages, revision: str, since: float | None, now: float) -> Judged:
    share = free_share(seen, revision)
    if share is None:
        return unknown(PAGES, f"{PAGES}: not every pod of revision {revision} says how many it has")
    passed = 0.0 if since is None else now - since
    text = (
        f"{PAGES}: {share:.0%} of the KV pages of revision {revision} are free, at least {floor.least:.0%} is asked for"
    )
    if share < floor.least:
        text += f"; so for {passed:.0f} s, accepted are {floor.grace:g} s"
    low = share < floor.least
    outcome = Outcome.PASSED if not low else Outcome.REGRESSED if passed >= floor.grace else Outcome.INCONCLUSIVE
    stated = SignalRecord(PAGES, "", outcome.value, message=text)
    wait = floor.grace - passed if outcome is Outcome.INCONCLUSIVE else None
    return told(outcome, blank(PAGES, share, floor.least), text, wait, "FreePages", (stated,))


def gate(wanted: Gate, found: GateReading | None) -> Judged:
    """Beyond its bounds: Regressed. Anything but one finite number: Inconclusive."""
    if found is None or found.value is None or not math.isfinite(found.value):
        return unknown(
            wanted.name,
            f"{wanted.name}: {(found.message or 'no finite number') if found else 'has not been asked yet'}",
        )
    low = wanted.low is not None and found.value < wanted.low
    high = wanted.high is not None and found.value > wanted.high
    bounds = " and ".join(
        text
        for text in (
            f"at least {wanted.low:g}" if wanted.low is not None else "",
            f"at most {wanted.high:g}" if wanted.high is not None else "",
        )
        if text
    )
    text = f"{wanted.name}: the value is {found.value:g}, {bounds} is accepted"
    outcome = Outcome.REGRESSED if low or high else Outcome.PASSED
    limit = wanted.low if low else wanted.high if wanted.high is not None else wanted.low
    stated = SignalRecord(wanted.name, "", outcome.value, message=text)
    return told(outcome, blank(wanted.name, found.value, limit or 0.0), text, None, "Gate", (stated,))
