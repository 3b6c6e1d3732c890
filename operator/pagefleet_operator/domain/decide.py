"""One decision: observation and time in, plan out. Pure and total; the shell gathers before it and applies after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import SERVICE_LABEL
from pagefleet_operator.domain import conditions
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.base.revision import snapshot
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.capacity_plan import comparison
from pagefleet_operator.domain.capacity_plan.comparison import NOT_COMPARED, Comparison
from pagefleet_operator.domain.children import child_of, children
from pagefleet_operator.domain.cost import report as cost_report
from pagefleet_operator.domain.cost import spending
from pagefleet_operator.domain.manifests import workload
from pagefleet_operator.domain.manifests.load_test_job import load_test_job
from pagefleet_operator.domain.manifests.prefill import prefill_pods, prefill_record
from pagefleet_operator.domain.records import recording, restoring
from pagefleet_operator.domain.rollout import actions, carrying_capacity, draining, invalid_spec, machine, pace
from pagefleet_operator.domain.rollout.draining import Draining
from pagefleet_operator.domain.rollout.target import target_of
from pagefleet_operator.domain.runtimes.catalog import can_sleep
from pagefleet_operator.domain.scaling import capacity, deletion_cost, spares
from pagefleet_operator.domain.scaling.spares import Spares
from pagefleet_operator.domain.slo import budget, report
from pagefleet_operator.domain.spec import parse
from pagefleet_operator.domain.spec.parse import Spec, SpecErrors
from pagefleet_operator.domain.spec.policy import refusals
from pagefleet_operator.domain.spec.rules.nodes import errors_of_name
from pagefleet_operator.domain.spec.schema.slo import Owner, owner
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.budget import fit
from pagefleet_operator.domain.status.codec import Parts
from pagefleet_operator.domain.status.condition import Problem
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.plan import Event, Plan
from pagefleet_operator.domain.status.records.slo import SLORecord
from pagefleet_operator.domain.status.records.spending import Spending, SpendingRecord
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import Condition, Phase, RevisionRecord, ScalingRecord, Status
from pagefleet_operator.domain.status.turn import MAX_MESSAGE, Journal, SpecTurn, Turn
from pagefleet_operator.domain.traffic import routing

MAX_HISTORY_WITHOUT_SPEC = 50  # revisions while the spec, and with it its historyLimit, cannot be read


@dataclass(frozen=True)
class Decisions:
    """The parts of one decision, before they become a plan. `limit` (reason, message) is the obstacle of scaling."""

    stage: Stage
    replicas: Mapping[str, int]
    draining: Draining
    history: tuple[RevisionRecord, ...]
    scaling: tuple[ScalingRecord, ...]
    spares: Spares
    limit: tuple[str, str] | None = None
    invalid: Problem | None = None
    slo: SLORecord | None = None
    spending: SpendingRecord | None = None
    compared: Comparison = NOT_COMPARED


def decide(observation: Observation, now: float) -> Plan:
    """Decide what the service needs now: the next status, its children, and the Events of the actions."""
    if pause := restoring.pause(observation, now):
        return Plan(observation.status, requeue=pause)
    journal = Journal(now)
    restored = restoring.restored(observation, now, journal)
    if restored is not observation and observation.status == Status():
        restored = actions.answered_before(restored, now)
    plan = recording.add(restored, _planned(restored, now, journal))
    parts = Parts.of(observation.memo, kept=bool(observation.status.canary))  # others are decided about rarely
    fitted = fit(plan.status, observation.status.conditions, now, parts)
    return replace(plan, status=fitted.status, document=fitted.document)


def _planned(observation: Observation, now: float, journal: Journal) -> Plan:
    parsed = parse.parse(observation.spec)
    match parsed:
        case SpecErrors():
            plan = _hold(Turn(observation, now, journal), Problem("InvalidSpec", parsed.message))
            return routing.keep(observation, plan)
        case Spec():
            if unfit := errors_of_name(observation.name, parsed.raw, observation.status.stable):
                problem = Problem("InvalidSpec", SpecErrors(tuple(unfit)).message)
                return routing.keep(observation, _hold(Turn(observation, now, journal), problem))
            if refused := refusals(observation.policy, parsed.raw):
                problem = Problem("NotAllowed", SpecErrors(tuple(refused)).message)
                return routing.keep(observation, _hold(Turn(observation, now, journal), problem))
            turn = SpecTurn(observation, now, journal, parsed, target_of(parsed.raw, observation.status))
            if unready := restoring.problem(turn, retried=actions.asks_to_retry(turn)):
                return routing.keep(observation, _hold(turn, unready))
            return routing.add(turn, _move(turn))


def _move(turn: SpecTurn) -> Plan:
    """Take one step of the rollout and size every revision for it."""
    spec = turn.spec
    stage = machine.advance(turn)
    sized = capacity.decide(turn, stage)
    replicas = carrying_capacity.raise_for_rollback(turn, stage, sized.replicas, spec.scaling.max)
    _retain_previous(turn, stage, replicas)
    drained = draining.decide(turn, replicas)
    fresh = {turn.target: snapshot(spec.raw)}
    history = _history(turn, stage, {**drained.replicas, **replicas}, fresh, spec.rollout.history)
    spent = _spending(turn)
    reached = spent is not None and spent.state is Spending.REACHED
    stable = _find(history, stage.stable)
    sleeps = stable is None or not stable.spec or can_sleep(revision_spec(stable.spec))
    warm = spares.decide(turn, stage, replicas, spec.scaling.spares if sleeps and not reached else 0)
    slo = budget.record(spec.slo, turn.observation.slo, turn.observation.status.slo, turn.now)
    report.announce(slo, turn.observation.status.slo, turn.journal)
    decided = Decisions(stage, replicas, drained, history, sized.records, warm, sized.limit)
    compared = comparison.compare(turn, stage, history)
    plan = _plan(turn, replace(decided, slo=slo, spending=spent, compared=compared))
    plan = replace(
        plan,
        needed=sized.needed or {},
        replica_cost=spec.replica_cost,
        replica_costs=_replica_costs(spec, plan.status.revisions),
        model=spec.pods.model.served_name or turn.observation.name,
    )
    return replace(plan, job=_load_test_job(turn, stage, history))


def _replica_costs(spec: Spec, revisions: Iterable[RevisionRecord]) -> dict[str, float]:
    """The price of a replica of each revision that has any, for an hour; {} when the spec gives no price."""
    if spec.cost.per_accelerator_hour is None:
        return {}
    held = [record for record in revisions if record.desired or record.ready]
    costs = {record.hash: spec.cost.of_replica(revision_spec(record.spec)) for record in held}
    return {name: price for name, price in costs.items() if price is not None}


def _spending(turn: SpecTurn) -> SpendingRecord | None:
    """The record of the month's cost, with its Events."""
    spec, observation = turn.spec, turn.observation
    before, prices = observation.status.spending, _replica_costs(spec, observation.status.revisions)
    usual = spec.replica_cost
    per_hour = None if usual is None else spending.per_hour(observation.revisions, prices, usual)
    spent = spending.record(spec.cost.budget, per_hour, before, spec.scaling, turn.now)
    cost_report.announce(spent, before, turn.journal)
    return spent


def _hold(turn: Turn, invalid: Problem) -> Plan:
    """The spec cannot be used: running pods stay as they are, and only a rollback still moves."""
    observation, status = turn.observation, turn.observation.status
    stage = invalid_spec.hold(turn, invalid.message)
    running = {name: one.replicas for name, one in observation.revisions.items() if one.replicas is not None}
    replicas = carrying_capacity.raise_for_rollback(turn, stage, running, stage.record.needed)
    history = _history(turn, stage, replicas, {}, MAX_HISTORY_WITHOUT_SPEC)
    unchanged = Draining({}, status.draining, ())
    warm = spares.decide(turn, stage, replicas, None)
    decided = Decisions(stage, replicas, unchanged, history, status.scaling, warm, invalid=invalid)
    compared = comparison.kept(status)
    return _plan(turn, replace(decided, slo=status.slo, spending=status.spending, compared=compared))


def _retain_previous(turn: SpecTurn, stage: Stage, replicas: dict[str, int]) -> None:
    """Retain the pods of the previous revision for spec.rollout.afterPromotion.keepPrevious."""
    previous = stage.previous
    if previous is None or previous.revision in stage.rejected_hashes:
        return
    running = turn.reading(previous.revision).replicas
    if running and turn.now - previous.since < turn.rollout.keep_previous:
        replicas.setdefault(previous.revision, running)


def _plan(turn: Turn, decisions: Decisions) -> Plan:
    observation, stage, replicas = turn.observation, decisions.stage, decisions.replicas
    in_use = tuple(name for name in (stage.canary, stage.stable) if replicas.get(name))
    problem = workload.problem(decisions.history, in_use, served=observation.groups, dropped=observation.dropped)
    problem = problem or conditions.problem_of(turn, stage)
    _announce(turn, decisions.invalid, problem)
    older = _older_defaults(observation, decisions)
    degraded = conditions.with_refusals(turn, problem)
    about = conditions.Report(stage, replicas, decisions.invalid, degraded, decisions.limit, older)
    about = replace(about, slo=decisions.slo, spending=decisions.spending, capacity=decisions.compared.conditions)
    about = replace(about, prefill=prefill_pods(decisions.history, replicas))
    stated = conditions.state(turn, about)
    status = replace(
        observation.status,
        observed_generation=observation.generation,
        stable=stage.stable,
        canary=stage.canary,
        traffic=stage.traffic,
        rollout=stage.record,
        rejected=stage.rejected,
        revisions=decisions.history,
        conditions=stated,
        decisions=turn.journal.log(observation.status.decisions),
        scaling=decisions.scaling,
        mirror=stage.mirror,
        action=stage.action,
        previous=stage.previous,
        baseline=stage.baseline,
        watch=stage.watch,
        draining=decisions.draining.records,
        spares=decisions.spares.record,
        slo=decisions.slo,
        spending=decisions.spending,
        capacity_plan=decisions.compared.record,
        replicas=sum(reading.ready for reading in observation.revisions.values()),
        selector=f"{SERVICE_LABEL}={observation.name}",
    )
    responsible = owner(observation.spec)
    return Plan(
        status=status,
        children=children(observation, decisions.history, replicas, decisions.spares.replicas),
        delete=decisions.draining.delete,
        withdrawn=decisions.spares.withdrawn,
        spares=decisions.spares.orders,
        events=tuple(_with_owner(event, responsible) for event in turn.journal.events),
        owner=responsible,
        deletion_costs=deletion_cost.costs(observation.revisions, replicas),
        requeue=pace.next_decision(turn, stage, moving=_is_moving(decisions, stated)),
    )


def _with_owner(event: Event, responsible: Owner) -> Event:
    """The Event with the owner in its message where it warns of something."""
    if event.type != "Warning" or not responsible.sentence:
        return event
    return replace(event, message=f"{event.message} ({responsible.sentence})")


def _is_moving(decisions: Decisions, stated: Iterable[Condition]) -> bool:
    """Whether something beside the rollout moves, or becomes due by time."""
    watched = any(entry.type == "Progressing" and entry.reason == "Watching" for entry in stated)
    scaling = any(condition.type == "Scaling" and condition.status == "True" for condition in stated)
    return watched or bool(decisions.draining.records) or decisions.spares.moving or scaling


def _older_defaults(observation: Observation, decisions: Decisions) -> tuple[str, str] | None:
    """The stable revision and the first field in which an operator's earlier defaults differ; None when none does."""
    stable = decisions.stage.stable
    record, reading = _find(decisions.history, stable), observation.revisions.get(stable)
    if record is None or reading is None or not record.spec:
        return None
    field = workload.older_defaults(
        child_of(observation, record), reading, served=observation.groups, dropped=observation.dropped
    )
    return (stable, field) if field else None


def _find(history: Iterable[RevisionRecord], revision: str) -> RevisionRecord | None:
    return next((record for record in history if record.hash == revision), None)


def _history(
    turn: Turn, stage: Stage, replicas: Mapping[str, int], fresh: Mapping[str, Any], maximum: int
) -> tuple[RevisionRecord, ...]:
    """The revisions in use and the latest others, with the spec that each was made from.

    They are `maximum` at most, unless more are in use. `fresh` has the snapshot of the target.
    """
    observation = turn.observation
    records = {record.hash: record for record in observation.status.revisions}
    for name, made_from in fresh.items():
        if name in replicas:
            record = records.setdefault(name, RevisionRecord(name, turn.now, made_from))
            if not record.spec:  # the stored one could not be read
                records[name] = replace(record, spec=made_from)
    previous = () if stage.previous is None else (stage.previous.revision,)
    used = {stage.stable, stage.canary, *replicas, *previous}
    others = sorted((one for one in records.values() if one.hash not in used), key=lambda one: one.created)
    room = min(len(others), max(0, maximum - len(used)))
    remaining = used | {record.hash for record in others[len(others) - room :]}
    result = observation.load_test.result if observation.load_test is not None else None
    results: dict[str, Mapping[str, object]] = {observation.status.canary: result} if result else {}
    if stage.record.phase is Phase.STARTING:
        results[stage.canary] = {}  # its load is tested, also after an earlier try
    return tuple(
        replace(
            record,
            ready=turn.reading(name).ready,
            desired=replicas.get(name, 0),
            load_test=results.get(name, record.load_test),
            prefill=prefill_record(turn.reading(name), record, replicas),
        )
        for name, record in sorted(records.items(), key=lambda item: item[1].created)
        if name in remaining
    )


def _load_test_job(turn: SpecTurn, stage: Stage, history: Iterable[RevisionRecord]) -> Mapping[str, object] | None:
    """The Job of a loadTest step that has no result yet."""
    record, steps = stage.record, turn.rollout.steps
    if record.phase is not Phase.LOAD_TEST or record.step >= len(steps):
        return None
    entry = steps[record.step]
    canary = _find(history, stage.canary)
    if entry.kind is not StepKind.LOAD_TEST or canary is None or canary.load_test or not canary.spec:
        return None
    child = child_of(turn.observation, canary)
    return load_test_job(child, turn.observation.image, entry.profile, entry.hold or 0.0, record.since)


def _announce(turn: Turn, invalid: Problem | None, fault: Problem | None) -> None:
    """Write an Event about a problem when it appears or changes.

    A fault gets one Event for each of its messages while the service is degraded. An image that cannot be pulled has two messages in
    turn: an Event at each turn would push everything else out of the decision log.
    """
    problem = invalid or fault
    if problem is None:
        return
    status = turn.observation.status
    before = next((c for c in status.conditions if c.type == "Degraded"), None)
    if before is not None and before.status == "True":
        told = [entry.message for entry in status.decisions if entry.time >= before.last_transition_time]
        if before.message.startswith(problem.message[:2000]) or (
            invalid is None and problem.message[:MAX_MESSAGE] in told
        ):
            return
    turn.journal.note(problem.reason, problem.message, warning=True)
