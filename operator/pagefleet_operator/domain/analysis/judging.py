"""Asks the guard for a verdict on the revision under judgement, and stores it in the rollout's record."""

from __future__ import annotations

from pagefleet_operator.domain.analysis import failures, guard, limits, sources
from pagefleet_operator.domain.analysis.guard import Comparison
from pagefleet_operator.domain.analysis.throughput import Prices
from pagefleet_operator.domain.analysis.verdict import Verdict
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.spec.rollout import Guard
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import BaselineRecord, Phase, RolloutRecord
from pagefleet_operator.domain.status.turn import SpecTurn

MAX_SIGNALS = 32


def judge_canary(turn: SpecTurn, stage: Stage) -> tuple[Stage, Verdict | None]:
    """Judge the canary by the concurrent stable. The verdict is None when the guard has nothing to judge."""
    record, observation, own_guard = _not_ahead(stage.record, turn.now), turn.observation, turn.rollout.guard
    mirrored = record.phase is Phase.MIRRORING and not stage.weight(stage.canary)
    low = limits.low_since(turn, own_guard.free_pages, stage.canary, record.low_since)
    counted = sources.count_requests(observation, own_guard, stage.canary, record.since, mirrored)
    record = replace(record, low_since=low, requests=max(record.requests, counted))
    comparison = Comparison(
        stable=stage.stable,
        canary=stage.canary,
        since=record.since if mirrored else record.traffic_since,
        now=turn.now,
        mirrored=mirrored,
        low_since=low,
        evidence=record.evidence,
        failures=record.failures,
        prices=_prices(turn, stage),
    )
    return _stored(replace(stage, record=record), guard.assess(observation, own_guard, comparison))


def judge_promoted(
    turn: SpecTurn, stage: Stage, own_guard: Guard, baseline: tuple[BaselineRecord, ...]
) -> tuple[Stage, Verdict | None]:
    """Judge the stable after its promotion by the record of the previous revision and the limits of `own_guard`."""
    record = _not_ahead(stage.record, turn.now)
    low = limits.low_since(turn, own_guard.free_pages, stage.stable, record.low_since)
    comparison = Comparison(
        stable=stage.previous.revision if stage.previous else "",
        canary=stage.stable,
        since=record.traffic_since,
        now=turn.now,
        baseline=baseline,
        after_promotion=True,
        low_since=low,
        failures=record.failures,
    )
    judged = replace(stage, record=replace(record, low_since=low))
    return _stored(judged, guard.assess(turn.observation, own_guard, comparison))


def _not_ahead(record: RolloutRecord, now: float) -> RolloutRecord:
    """The record with evidence up to `now` at most: after the clock was set back, the requests that come count."""
    evidence = tuple(replace(one, newest=now) if one.newest > now else one for one in record.evidence)
    return replace(record, evidence=evidence, failures=failures.not_ahead(record.failures, now))


def _prices(turn: SpecTurn, stage: Stage) -> Prices | None:
    """What replicas of both revisions cost, by the specs that they were made from."""
    specs = {one.hash: one.spec for one in turn.observation.status.revisions if one.spec}
    costs = [
        turn.spec.cost.of_replica(revision_spec(specs[name])) for name in (stage.stable, stage.canary) if name in specs
    ]
    known = [cost for cost in costs if cost is not None]
    return Prices(known[0], known[1], turn.reading(stage.stable).ready) if len(known) == 2 else None


def _stored(stage: Stage, verdict: Verdict | None) -> tuple[Stage, Verdict | None]:
    """A source that is silent now says nothing of its signals, and takes nothing from what is stored of them."""
    if verdict is None:
        return stage, None
    before = stage.record
    known = {(one.signal, one.source) for one in verdict.failures}
    silent = tuple(one for one in before.failures if (one.signal, one.source) not in known)
    record = replace(
        before,
        verdict=verdict.record,
        verdicts=verdict.signals[:MAX_SIGNALS],
        evidence=verdict.evidence,
        failures=(*verdict.failures, *silent),
    )
    return replace(stage, record=record), verdict
