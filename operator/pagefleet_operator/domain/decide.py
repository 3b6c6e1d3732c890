"""One decision: observation and time in, plan out. Pure and total; the shell gathers before it and applies after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pagefleet_operator.domain import capacity, conditions, rollout, spec, victims
from pagefleet_operator.domain.build.deployment import deployment
from pagefleet_operator.domain.build.names import SERVICE_LABEL, Child
from pagefleet_operator.domain.build.pdb import disruption_budget
from pagefleet_operator.domain.build.service import service
from pagefleet_operator.domain.conditions import Problem
from pagefleet_operator.domain.journal import Journal
from pagefleet_operator.domain.observation import Observation
from pagefleet_operator.domain.plan import Plan
from pagefleet_operator.domain.revision import revision_hash, snapshot
from pagefleet_operator.domain.rollout import Stage
from pagefleet_operator.domain.spec import Spec, SpecErrors
from pagefleet_operator.domain.status import Phase, RevisionRecord, ScalingRecord

MOST_REVISIONS = 10
BUSY_SECONDS, IDLE_SECONDS = 2.0, 5.0


def decide(seen: Observation, now: float) -> Plan:
    journal = Journal(now)
    parsed = spec.parse(seen.spec)
    match parsed:
        case SpecErrors():
            return _keep(seen, Problem("InvalidSpec", parsed.message), now, journal)
        case Spec():
            return _move(seen, parsed, now, journal)


def _move(seen: Observation, parsed: Spec, now: float, journal: Journal) -> Plan:
    wanted = revision_hash(parsed.raw)
    stage = rollout.advance(seen, parsed.rollout, wanted, now, journal)
    sized = capacity.decide(stage, seen.revisions, seen.status, parsed.scaling, parsed.rollout, now, journal, seen.load)
    replicas = dict(sized.replicas)
    if stage.record.phase is Phase.IDLE and now - stage.record.since < parsed.rollout.keep_previous:
        rejected = {rejection.hash for rejection in stage.rejected}
        for name, found in seen.revisions.items():
            if name not in replicas and name not in rejected and found.replicas:
                replicas[name] = found.replicas
    known = _history(seen, stage, replicas, {wanted: snapshot(parsed.raw)}, now)
    planned = _plan(seen, stage, replicas, known, sized.records, None, now, journal, sized.limit)
    return replace(planned, needed=sized.needed or {}, replica_cost=parsed.replica_cost)


def _keep(seen: Observation, invalid: Problem, now: float, journal: Journal) -> Plan:
    """The spec cannot be used: what runs goes on running as it is."""
    status = seen.status
    stage = Stage(status.stable, status.canary, status.traffic, status.rollout, status.rejected)
    replicas = {name: found.replicas for name, found in seen.revisions.items() if found.replicas is not None}
    known = _history(seen, stage, replicas, {}, now)
    return _plan(seen, stage, replicas, known, status.scaling, invalid, now, journal)


def _plan(
    seen: Observation,
    stage: Stage,
    replicas: dict[str, int],
    known: tuple[RevisionRecord, ...],
    scaling: tuple[ScalingRecord, ...],
    invalid: Problem | None,
    now: float,
    journal: Journal,
    limit: tuple[str, str] | None = None,
) -> Plan:
    problem = conditions.problem_of(stage, seen)
    _announce(seen, invalid or problem, journal)
    stated = conditions.state(stage, seen, replicas, invalid, problem, now, limit)
    status = replace(
        seen.status,
        observed_generation=seen.generation,
        stable=stage.stable,
        canary=stage.canary,
        traffic=stage.traffic,
        rollout=stage.record,
        rejected=stage.rejected,
        revisions=known,
        conditions=stated,
        decisions=journal.log(seen.status.decisions),
        scaling=scaling,
        replicas=sum(found.ready for found in seen.revisions.values()),
        selector=f"{SERVICE_LABEL}={seen.name}",
    )
    gone = () if invalid else tuple(sorted(set(seen.revisions) - set(replicas)))
    busy = bool(stage.canary) or not stage.traffic or any(c.type == "Scaling" and c.status == "True" for c in stated)
    return Plan(
        status=status,
        children=tuple(_children(seen, known, replicas)),
        delete=gone,
        events=tuple(journal.events),
        victims=victims.costs(seen.revisions, replicas),
        requeue=BUSY_SECONDS if busy else IDLE_SECONDS,
    )


def _children(
    seen: Observation, known: tuple[RevisionRecord, ...], replicas: Mapping[str, int]
) -> Iterable[Mapping[str, object]]:
    for record in known:
        if record.hash in replicas and record.spec:
            child = Child(seen.namespace, seen.name, seen.uid, record.hash, _typed(record.spec))
            yield deployment(child, replicas[record.hash])
            yield service(child)
            yield disruption_budget(child)


def _history(
    seen: Observation, stage: Stage, replicas: Mapping[str, int], fresh: Mapping[str, Any], now: float
) -> tuple[RevisionRecord, ...]:
    """Revisions in use and the latest others, with the spec each was made from."""
    records = {record.hash: record for record in seen.status.revisions}
    for name, made_from in fresh.items():
        if name in replicas:
            records.setdefault(name, RevisionRecord(name, now, made_from))
    used = {stage.stable, stage.canary, *replicas}
    others = sorted((r for r in records.values() if r.hash not in used), key=lambda r: r.created)
    kept = used | {record.hash for record in others[len(others) - max(0, MOST_REVISIONS - len(used)) :]}
    return tuple(
        replace(record, ready=rollout.reading(seen.revisions, name).ready, desired=replicas.get(name, 0))
        for name, record in sorted(records.items(), key=lambda item: item[1].created)
        if name in kept
    )


def _announce(seen: Observation, problem: Problem | None, journal: Journal) -> None:
    """A problem is an Event once, when it appears or changes."""
    if problem is None:
        return
    before = next((c for c in seen.status.conditions if c.type == "Degraded"), None)
    if before is None or before.status != "True" or before.message != problem.message[:2000]:
        journal.note(problem.reason, problem.message, warning=True)


def _typed(stored: Mapping[str, object]) -> Mapping[str, Any]:
    return stored
