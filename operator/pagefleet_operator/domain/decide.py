"""One decision: observation and time in, plan out. Pure and total; the shell gathers before it and applies after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pagefleet_contract.names import SERVICE_LABEL
from pagefleet_operator.domain import conditions
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision import revision_hash, snapshot
from pagefleet_operator.domain.manifests import workload
from pagefleet_operator.domain.manifests.disruption_budget import disruption_budget
from pagefleet_operator.domain.manifests.load_test_job import load_test
from pagefleet_operator.domain.manifests.service import service
from pagefleet_operator.domain.manifests.spare import spare_deployment
from pagefleet_operator.domain.rollout import affordable, draining, invalid_spec, machine
from pagefleet_operator.domain.rollout.draining import Drained
from pagefleet_operator.domain.scaling import capacity, deletion_cost, spares
from pagefleet_operator.domain.scaling.spares import Spares
from pagefleet_operator.domain.spec import parse
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors
from pagefleet_operator.domain.spec.rollout import Rollout, StepKind
from pagefleet_operator.domain.status.condition import Problem
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.stage import Stage, reading_of
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, ScalingRecord
from pagefleet_operator.domain.traffic import extras

MOST_KEPT = 50  # revisions while the spec, and with it its historyLimit, cannot be read
BUSY_SECONDS, IDLE_SECONDS = 2.0, 5.0


def decide(seen: Observation, now: float) -> Plan:
    journal = Journal(now)
    parsed = parse.parse(seen.spec)
    match parsed:
        case SpecErrors():
            return extras.kept(_keep(seen, Problem("InvalidSpec", parsed.message), now, journal), seen.status)
        case Spec():
            return extras.added(_move(seen, parsed, now, journal), seen, parsed, now)


def _move(seen: Observation, parsed: Spec, now: float, journal: Journal) -> Plan:
    wanted = revision_hash(parsed.raw)
    stage = machine.advance(seen, parsed.rollout, wanted, now, journal)
    sized = capacity.decide(stage, seen.revisions, seen.status, parsed.scaling, parsed.rollout, now, journal, seen.load)
    replicas = affordable.raised(stage, seen, sized.replicas, parsed.scaling.max)
    previous = stage.previous
    if (
        previous is not None
        and previous.revision not in stage.rejected_hashes
        and now - previous.since < parsed.rollout.keep_previous
    ):
        found = reading_of(seen.revisions, previous.revision)
        if found.replicas:
            replicas.setdefault(previous.revision, found.replicas)
    drained = draining.decide(seen, replicas, now)
    known = _history(
        seen, stage, {**drained.replicas, **replicas}, {wanted: snapshot(parsed.raw)}, parsed.rollout.history, now
    )
    warm = spares.decide(seen, stage, replicas, parsed.scaling.spares, now, journal)
    planned = _plan(seen, stage, replicas, drained, known, sized.records, None, now, journal, warm, sized.limit)
    planned = replace(planned, needed=sized.needed or {}, replica_cost=parsed.replica_cost)
    job = load_test_job(seen, parsed.rollout, stage, known)
    return replace(planned, job=job) if job else planned


def _keep(seen: Observation, invalid: Problem, now: float, journal: Journal) -> Plan:
    """The spec cannot be used: what runs goes on running as it is; only a rollback still moves."""
    status = seen.status
    stage = invalid_spec.keep(seen, invalid.message, now, journal)
    found = {name: one.replicas for name, one in seen.revisions.items() if one.replicas is not None}
    replicas = affordable.raised(stage, seen, found, stage.record.needed)
    known = _history(seen, stage, replicas, {}, MOST_KEPT, now)
    drained = Drained({}, status.draining, ())
    warm = spares.decide(seen, stage, replicas, None, now, journal)
    return _plan(seen, stage, replicas, drained, known, status.scaling, invalid, now, journal, warm)


def _plan(
    seen: Observation,
    stage: Stage,
    replicas: dict[str, int],
    drained: Drained,
    known: tuple[RevisionRecord, ...],
    scaling: tuple[ScalingRecord, ...],
    invalid: Problem | None,
    now: float,
    journal: Journal,
    warm: Spares,
    limit: tuple[str, str] | None = None,
) -> Plan:
    in_use = tuple(name for name in (stage.canary, stage.stable) if replicas.get(name))
    problem = workload.problem(known, in_use, served=seen.groups) or conditions.problem_of(stage, seen)
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
        mirror=stage.mirror,
        action=stage.action,
        previous=stage.previous,
        baseline=stage.baseline,
        draining=drained.records,
        spares=warm.record,
        replicas=sum(found.ready for found in seen.revisions.values()),
        selector=f"{SERVICE_LABEL}={seen.name}",
    )
    timed = stage.record.phase is Phase.WATCHING or bool(drained.records) or warm.moving
    busy = (
        bool(stage.canary)
        or not stage.traffic
        or timed
        or any(c.type == "Scaling" and c.status == "True" for c in stated)
    )
    return Plan(
        status=status,
        children=tuple(_children(seen, known, replicas, warm.replicas)),
        delete=drained.gone,
        withdrawn=warm.withdrawn,
        spares=warm.orders,
        events=tuple(journal.events),
        deletion_costs=deletion_cost.costs(seen.revisions, replicas),
        requeue=BUSY_SECONDS if busy else IDLE_SECONDS,
    )


def _children(
    seen: Observation, known: tuple[RevisionRecord, ...], replicas: Mapping[str, int], spare: Mapping[str, int]
) -> Iterable[Mapping[str, object]]:
    for record in known:
        if record.hash in replicas and record.spec:
            child = Child(seen.namespace, seen.name, seen.uid, record.hash, _typed(record.spec))
            made = workload.workload(child, replicas[record.hash], served=seen.groups)
            if made is None:
                continue  # what was deleted is known by its Deployment or LeaderWorkerSet: no other child without one
            yield made
            yield service(child)
            yield disruption_budget(child)
            if spare.get(record.hash):
                yield spare_deployment(child, spare[record.hash])


def _history(
    seen: Observation, stage: Stage, replicas: Mapping[str, int], fresh: Mapping[str, Any], most: int, now: float
) -> tuple[RevisionRecord, ...]:
    """Revisions in use and the latest others, with the spec each was made from; at most `most` unless more are used."""
    records = {record.hash: record for record in seen.status.revisions}
    for name, made_from in fresh.items():
        if name in replicas:
            kept = records.setdefault(name, RevisionRecord(name, now, made_from))
            if not kept.spec:  # what was stored could not be read
                records[name] = replace(kept, spec=made_from)
    used = {stage.stable, stage.canary, *replicas, *(() if stage.previous is None else (stage.previous.revision,))}
    others = sorted((r for r in records.values() if r.hash not in used), key=lambda r: r.created)
    left = used | {record.hash for record in others[len(others) - min(len(others), max(0, most - len(used))) :]}
    result = seen.load_test.result if seen.load_test is not None else None
    return tuple(
        replace(
            record,
            ready=reading_of(seen.revisions, name).ready,
            desired=replicas.get(name, 0),
            load_test=result if result and name == seen.status.canary else record.load_test,
        )
        for name, record in sorted(records.items(), key=lambda item: item[1].created)
        if name in left
    )


def load_test_job(
    seen: Observation, chosen: Rollout, stage: Stage, known: tuple[RevisionRecord, ...]
) -> Mapping[str, object] | None:
    """The Job of a loadTest step that has no result yet."""
    record = stage.record
    if record.phase is not Phase.LOAD_TEST or record.step >= len(chosen.steps):
        return None
    entry = chosen.steps[record.step]
    canary = next((one for one in known if one.hash == stage.canary), None)
    if entry.kind is not StepKind.LOAD_TEST or canary is None or canary.load_test or not canary.spec:
        return None
    child = Child(seen.namespace, seen.name, seen.uid, canary.hash, _typed(canary.spec))
    return load_test(child, seen.image, entry.profile, entry.hold or 0.0, record.since)


def _announce(seen: Observation, problem: Problem | None, journal: Journal) -> None:
    """A problem is an Event once, when it appears or changes."""
    if problem is None:
        return
    before = next((c for c in seen.status.conditions if c.type == "Degraded"), None)
    if before is None or before.status != "True" or before.message != problem.message[:2000]:
        journal.note(problem.reason, problem.message, warning=True)


def _typed(stored: Mapping[str, object]) -> Mapping[str, Any]:
    return stored
