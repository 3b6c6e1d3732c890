"""The comparison of one decision: the revisions that are compared with the plan, the record, and the condition with its Events.

Copies of requests (a mirror) and the requests of a load test are of other lengths than the clients', or nobody counts them. So readings of
those times are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.capacity_plan import report
from pagefleet_operator.domain.capacity_plan.record import Subject, record
from pagefleet_operator.domain.runtimes.catalog import page_tokens_of
from pagefleet_operator.domain.spec.schema.step_kinds import StepKind
from pagefleet_operator.domain.status.condition import NewCondition
from pagefleet_operator.domain.status.records.capacity_plan import CapacityPlanRecord
from pagefleet_operator.domain.status.stage import Stage
from pagefleet_operator.domain.status.status import Phase, RevisionRecord, Status
from pagefleet_operator.domain.status.turn import SpecTurn

TESTS = (StepKind.MIRROR, StepKind.LOAD_TEST)


@dataclass(frozen=True)
class Comparison:
    """The record to store, and the condition (none without a plan)."""

    record: CapacityPlanRecord | None = None
    conditions: Sequence[NewCondition] = ()


NOT_COMPARED = Comparison()


def compare(turn: SpecTurn, stage: Stage, history: Iterable[RevisionRecord]) -> Comparison:
    """Compare what is measured with `spec.capacityPlan`."""
    plan, status = turn.spec.capacity_plan, turn.observation.status
    if plan is None:
        return NOT_COMPARED
    made = record(plan, _subjects(turn, stage, history), turn.observation.load, status.capacity_plan, turn.now)
    conditions = report.conditions(plan, made, stage.canary, turn.spec.replica_cost)
    report.announce(conditions, status.conditions, turn.journal)
    return Comparison(made, conditions)


def kept(status: Status) -> Comparison:
    """What the last decision found, while the spec cannot be used."""
    stored = [one for one in status.conditions if one.type == report.CONDITION]
    return Comparison(status.capacity_plan, [(one.type, one.status, one.reason, one.message) for one in stored])


def _subjects(turn: SpecTurn, stage: Stage, history: Iterable[RevisionRecord]) -> list[Subject]:
    """The canary, while a rollout tries one, and the stable revision."""
    specs = {record.hash: record.spec for record in history}
    found = []
    for revision in (stage.canary, stage.stable):
        if revision:
            spec = specs.get(revision)
            page = page_tokens_of(revision_spec(spec)) if spec else None
            found.append(Subject(turn.reading(revision), _since(turn, stage, revision), page))
    return found


def _since(turn: SpecTurn, stage: Stage, revision: str) -> float | None:
    """The time since which a revision's readings are of clients' requests; None while they are not."""
    record = stage.record
    if revision == stage.stable:
        return record.traffic_since if record.phase is Phase.WATCHING else 0.0
    if record.phase in (Phase.MIRRORING, Phase.LOAD_TEST) or record.traffic_since is None:
        return None
    tested = any(step.kind in TESTS for step in turn.rollout.steps[: record.step])
    return max(record.traffic_since, record.since) if tested else record.traffic_since
