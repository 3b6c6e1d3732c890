"""The findings on the assumptions of a plan, in `.status.capacityPlan`.

Every LOOK_SECONDS each assumption is compared with its estimate. It is off when the whole interval is beyond the tolerance, and holds
when the whole interval is within it. Anything between leaves the finding as it is, so an idle service keeps its last one. A finding
changes when two looks in a row say so, of those that had enough readings. One that was off holds again only when the number is clearly back: within CLEARED of the
tolerance. So a number near the tolerance does not come and go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.capacity_plan import estimates
from pagefleet_operator.domain.capacity_plan.estimates import Estimate
from pagefleet_operator.domain.scaling.inflow import STALE_LOAD
from pagefleet_operator.domain.scaling.load import sample
from pagefleet_operator.domain.spec.capacity_plan import Assumption, CapacityPlan
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.records.capacity_plan import AssumptionRecord, CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.sample import ServiceLoad

LOOK_SECONDS = 300.0
CLEARED = 0.8
Estimates = Mapping[Assumption, Estimate | None]


@dataclass(frozen=True)
class Subject:
    """A revision that is compared with the plan.

    Its readings from `since` on are of its clients' requests, None: none is. `page_tokens` is None where it is not known how many tokens
    its engines' KV pages have.
    """

    reading: RevisionReading
    since: float | None = 0.0
    page_tokens: int | None = None


def record(
    plan: CapacityPlan | None,
    subjects: Iterable[Subject],
    load: ServiceLoad | None,
    before: CapacityPlanRecord | None,
    now: float,
) -> CapacityPlanRecord | None:
    """The record of a service: its assumptions are looked at again when `before` is LOOK_SECONDS old. None without a plan."""
    if plan is None:
        return None
    given = list(subjects)
    if before is not None and 0 <= now - before.written < LOOK_SECONDS:
        kept = replace(before, tolerance=plan.tolerance, assumptions=tuple(_stored(plan, given, before)))
        return before if kept == before else kept
    found = dict(_estimates(plan, given, load, now))
    made = [
        _looked(one, found.get(one.revision, {}).get(Assumption(one.name)), plan.tolerance, now)
        for one in _stored(plan, given, before)
    ]
    return CapacityPlanRecord(now, plan.tolerance, tuple(made))


def finding(
    estimate: Estimate, planned: float, tolerance: float, before: Finding, *, one_sided: bool = False
) -> Finding | None:
    """What an estimate says about a planned number; None when it says nothing that is sure.

    `one_sided`: less than planned is as planned.
    """
    low, high = estimate.low / planned - 1, estimate.high / planned - 1
    if low > tolerance:
        return Finding.ABOVE
    away = estimate.nearest(planned) / planned - 1
    if one_sided:
        high = away = max(0.0, away)
    elif high < -tolerance:
        return Finding.BELOW
    elif low < -tolerance:
        return None
    limit = tolerance if before in (Finding.UNKNOWN, Finding.HOLDS) else CLEARED * tolerance
    return Finding.HOLDS if high <= tolerance and abs(away) <= limit else None


def _stored(
    plan: CapacityPlan, subjects: Iterable[Subject], before: CapacityPlanRecord | None
) -> Iterator[AssumptionRecord]:
    """What is known of each assumption of this plan about each subject; the rate of requests is the whole service's."""
    known = {(one.name, one.revision): one for one in before.assumptions} if before is not None else {}
    revisions = [subject.reading.hash for subject in subjects]
    for name in Assumption:
        for revision in [""] if name is Assumption.RATE else revisions:
            if name in plan.planned:
                new = AssumptionRecord(name.value, revision, plan.planned[name])
                stored = known.get((new.name, revision), new)
                yield stored if stored.planned == new.planned else new


def _looked(before: AssumptionRecord, estimate: Estimate | None, tolerance: float, now: float) -> AssumptionRecord:
    """The record after one more look."""
    if estimate is None:
        return before
    one_sided = before.name == Assumption.RATE
    says = finding(estimate, before.planned, tolerance, before.finding, one_sided=one_sided)
    low, high = _rounded(estimate.low), None if math.isinf(estimate.high) else _rounded(estimate.high)
    if says is None:
        if before.finding is Finding.UNKNOWN:
            return replace(before, pending=Finding.UNKNOWN, low=low, high=high, until=now)
        return replace(before, pending=Finding.UNKNOWN)  # the numbers stay those that the finding rests on
    if says is not before.finding and says is not before.pending:
        return replace(before, pending=says)
    measured = _rounded(estimate.nearest(before.planned))
    return replace(before, finding=says, pending=says, measured=measured, low=low, high=high, until=now)


def _estimates(
    plan: CapacityPlan, subjects: Iterable[Subject], load: ServiceLoad | None, now: float
) -> Iterator[tuple[str, Estimates]]:
    """What can be estimated, by revision."""
    usable = load if load is not None and load.age <= STALE_LOAD else None
    yield "", {Assumption.RATE: estimates.busiest_rate(usable)}
    for subject in subjects:
        if subject.since is not None:
            yield subject.reading.hash, _of(plan, subject, subject.since, usable, now)


def _of(plan: CapacityPlan, subject: Subject, since: float, load: ServiceLoad | None, now: float) -> Estimates:
    reading, page = subject.reading, subject.page_tokens
    latest = sample(reading, now)
    samples = [*(one for one in reading.history if since <= one.time < now), latest]
    found = dict[Assumption, Estimate | None]()
    if plan.concurrency is not None:
        found[Assumption.THROUGHPUT] = estimates.throughput_at(samples, plan.concurrency)
    if load is not None and reading.hash in load.started:
        found[Assumption.OUTPUT_TOKENS] = estimates.output_tokens(samples, load.started[reading.hash])
    if page is not None:
        found[Assumption.KV_TOKENS] = estimates.kv_tokens(samples, page, plan.shared_tokens)
        found[Assumption.KV_CACHE] = estimates.kv_cache_tokens(latest, page)
    return found


def _rounded(value: float) -> float:
    """Three significant digits: a smaller change is not worth a write of the status."""
    return float(f"{value:.3g}")
