"""The steps of a rollout: the demand of each, its end, and the change that the next one makes."""

from __future__ import annotations

from pagefleet_operator.domain.analysis.adjusted import whole_answers
from pagefleet_operator.domain.analysis.adjusted.forecast import forecast
from pagefleet_operator.domain.analysis.verdict import Outcome, Verdict
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.rollout import carrying_capacity, loadtest, rollback
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.spec.schema.rollout import OnInconclusive
from pagefleet_operator.domain.spec.schema.step_kinds import STEP_KINDS, RolloutStep, StepKind
from pagefleet_operator.domain.status.stage import Stage, begin_phase, split_traffic, watched_seconds
from pagefleet_operator.domain.status.status import MirrorRecord, Phase
from pagefleet_operator.domain.status.turn import SpecTurn

PHASES = {kind: Phase(row.phase) for kind, row in STEP_KINDS.items()}
WAITING = frozenset(PHASES[kind] for kind, row in STEP_KINDS.items() if row.waits)


def weight_of(rollout: Rollout, step: int) -> int:
    """The canary's weight in a step; steps of other kinds keep the weight before them."""
    weights = [entry.weight for entry in rollout.steps[: step + 1] if entry.weight is not None]
    return weights[-1] if weights else 0


def enter(turn: SpecTurn, stage: Stage, step: int) -> Stage:
    """Begin a step, or the promotion after the last one. A weight is in force once the canary can carry it."""
    record, rollout = stage.record, turn.rollout
    if step >= len(rollout.steps):
        return begin_promotion(turn, stage, f"revision {stage.canary} has passed every step")
    entry = rollout.steps[step]
    verdict = f" ({record.verdict.message})" if record.verdict else ""
    demand = STEP_KINDS[entry.kind].decision(entry, weight_of(rollout, step))
    text = f"step {step + 1} of {len(rollout.steps)}: revision {stage.canary} {demand}"
    turn.journal.note("StepAdvanced", text + verdict)
    mirror = MirrorRecord(stage.canary, entry.mirror) if entry.kind is StepKind.MIRROR else None
    entered = replace(begin_phase(record, PHASES[entry.kind], turn.now), step=step)
    return _apply_weight(turn, replace(stage, mirror=mirror, record=entered))


def begin_promotion(turn: SpecTurn, stage: Stage, cause: str) -> Stage:
    """Raise the canary's replicas before it gets all traffic."""
    turn.journal.note("Promoting", f"{cause}; its replicas are raised before it gets all traffic")
    record = replace(begin_phase(stage.record, Phase.PROMOTING, turn.now), step=len(turn.rollout.steps))
    return replace(stage, mirror=None, record=record)


def advance(turn: SpecTurn, stage: Stage, verdict: Verdict | None) -> Stage:
    """Go on within the present step, or to the next one. `verdict` is None without a guard."""
    steps, step = turn.rollout.steps, stage.record.step
    if step >= len(steps) or PHASES[steps[step].kind] is not stage.record.phase:
        # A person has edited the steps under the rollout: this one has another kind now, or is gone. Then the last one is held,
        # because the canary has not passed it.
        return enter(turn, stage, min(step, max(0, len(steps) - 1)))
    stage, weight = _apply_weight(turn, stage), weight_of(turn.rollout, step)
    if weight > stage.weight(stage.canary) and (shortage := carrying_capacity.shortage(turn, stage, weight)):
        return rollback.reject(turn, stage, "CapacityShortage", shortage)
    if steps[step].kind is StepKind.LOAD_TEST:
        return _await_load_test(turn, stage, steps[step])
    return _await_hold(turn, stage, steps[step], verdict)


def _await_hold(turn: SpecTurn, stage: Stage, entry: RolloutStep, verdict: Verdict | None) -> Stage:
    """Wait for the step's hold, its requests and a verdict that passes; without a verdict, to the deadline at most."""
    record, guard = stage.record, turn.rollout.guard
    if entry.hold is None:
        return stage
    in_force = stage.weight(stage.canary) == weight_of(turn.rollout, record.step)
    passed = verdict is None or verdict.outcome is Outcome.PASSED
    watched = watched_seconds(record, turn.now)
    over = in_force and watched >= entry.hold and record.requests >= entry.min_requests
    if over and passed and turn.reading(stage.canary).ready:
        return enter(turn, stage, record.step + 1)
    if verdict is None or passed or watched < entry.hold + guard.deadline:
        return stage
    message = (
        f"no verdict within {guard.deadline:g} s after the hold of {entry.hold:g} s in step {record.step + 1} of "
        f"{len(turn.rollout.steps)}, with {record.requests} requests to the canary: {verdict.record.message}"
    )
    match guard.on_inconclusive:
        case OnInconclusive.HOLD:
            return stage
        case OnInconclusive.ROLLBACK:
            return rollback.reject(turn, stage, "DeadlineExceeded", message)
        case OnInconclusive.PROMOTE:
            return _go_on_unproven(turn, stage, message) if over and turn.reading(stage.canary).ready else stage


def _go_on_unproven(turn: SpecTurn, stage: Stage, message: str) -> Stage:
    """End the step although nothing was shown about the canary, because the spec asks for it."""
    text = (
        f"the step ends although nothing was shown about revision {stage.canary} (onInconclusive: promote): {message}"
    )
    turn.journal.note("StepUnproven", text, warning=True)
    return enter(turn, stage, stage.record.step + 1)


def _apply_weight(turn: SpecTurn, stage: Stage) -> Stage:
    """Set the step's weight once the canary can carry it: a canary that is short of pods would look slow."""
    weight, record = weight_of(turn.rollout, stage.record.step), stage.record
    if weight == stage.weight(stage.canary):
        return stage
    if weight > stage.weight(stage.canary) and not carrying_capacity.canary_can_carry(turn, stage, weight):
        return stage
    began = replace(
        begin_phase(record, record.phase, turn.now),
        paused=record.paused,
        traffic_since=turn.now if record.traffic_since is None else record.traffic_since,
    )
    _note_forecast(turn, stage, weight)
    return replace(stage, traffic=split_traffic(stage.stable, stage.canary, weight), record=began)


def _note_forecast(turn: SpecTurn, stage: Stage, weight: int) -> None:
    """Say what the step can show at the present rate of requests, where the guard judges times at equal load."""
    entry = next((one for one in turn.rollout.guard.latency if one.by_load), None)
    if entry is None or turn.observation.slices is None:
        return
    hold = turn.rollout.steps[stage.record.step].hold
    whole = turn.rollout.guard.whole_answers and whole_answers.stand_in(turn.observation.slices, stage.stable)
    entry = whole_answers.entry_for(entry) if whole else entry
    text = forecast(turn.observation.slices, stage.stable, entry, weight, hold, whole=whole)
    if text is not None:
        turn.journal.note("VerdictForecast", text)


def _await_load_test(turn: SpecTurn, stage: Stage, entry: RolloutStep) -> Stage:
    """Wait for the Job's result, and compare it with the stored result of the stable."""
    stored = {record.hash: record.load_test for record in turn.observation.status.revisions}
    result, reading = stored.get(stage.canary), turn.observation.load_test
    if not result and reading is not None:
        if reading.failure:
            return rollback.reject(turn, stage, "LoadTest", f"the load test failed: {reading.failure}")
        result = reading.result
    if not result:
        if entry.hold is not None and watched_seconds(stage.record, turn.now) > entry.hold:
            message = f"the load test has not ended within its timeout of {entry.hold:g} s"
            return rollback.reject(turn, stage, "LoadTest", message)
        return stage
    comparison = loadtest.compare(result, stored.get(stage.stable) or {}, turn.rollout.guard)
    if comparison.failure:
        return rollback.reject(turn, stage, "LoadTest", comparison.failure)
    turn.journal.note("LoadTestPassed", comparison.message)
    return enter(turn, stage, stage.record.step + 1)
