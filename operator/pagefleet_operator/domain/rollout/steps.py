"""The steps of a rollout: what each asks for, when it is over, and what the next one changes."""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.domain.analysis import load_test
from pagefleet_operator.domain.analysis.guard import Judged, Outcome
from pagefleet_operator.domain.rollout import affordable, rollback
from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.spec.schema.step_kinds import STEP_KINDS, RolloutStep, StepKind
from pagefleet_operator.domain.status.journal import Journal
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.stage import Stage, begin_phase, reading_of, split_traffic, watched_seconds
from pagefleet_operator.domain.status.status import MirrorRecord, Phase

PHASES = {kind: Phase(row.phase) for kind, row in STEP_KINDS.items()}
WAITING = frozenset(PHASES[kind] for kind, row in STEP_KINDS.items() if row.waits)


def weight_of(rollout: Rollout, step: int) -> int:
    """The canary's weight in a step; other steps keep the weight before them."""
    weights = [entry.weight for entry in rollout.steps[: step + 1] if entry.weight is not None]
    return weights[-1] if weights else 0


def enter(stage: Stage, seen: Observation, rollout: Rollout, step: int, now: float, journal: Journal) -> Stage:
    """Begin a step, or the promotion after the last one. A weight is in force once the canary can carry it."""
    record = stage.record
    if step >= len(rollout.steps):
        return promoting(stage, rollout, f"revision {stage.canary} has passed every step", now, journal)
    entry, weight = rollout.steps[step], weight_of(rollout, step)
    verdict = f" ({record.verdict.message})" if record.verdict else ""
    what = STEP_KINDS[entry.kind].decision(entry, weight)
    journal.note("StepAdvanced", f"step {step + 1} of {len(rollout.steps)}: revision {stage.canary} {what}{verdict}")
    mirror = MirrorRecord(stage.canary, entry.mirror) if entry.kind is StepKind.MIRROR else None
    entered = replace(begin_phase(record, PHASES[entry.kind], now), step=step)
    return _weighted(replace(stage, mirror=mirror, record=entered), seen, rollout, now)


def promoting(stage: Stage, rollout: Rollout, why: str, now: float, journal: Journal) -> Stage:
    journal.note("Promoting", f"{why}; its replicas are raised first")
    record = replace(begin_phase(stage.record, Phase.PROMOTING, now), step=len(rollout.steps))
    return replace(stage, mirror=None, record=record)


def step(
    stage: Stage, seen: Observation, rollout: Rollout, judged: Judged | None, now: float, journal: Journal
) -> Stage:
    """Go on within the present step, or to the next."""
    if stage.record.step >= len(rollout.steps):
        return enter(stage, seen, rollout, stage.record.step, now, journal)
    entry = rollout.steps[stage.record.step]
    if PHASES[entry.kind] is not stage.record.phase:
        # The steps were edited under the rollout: this one is another now.
        return enter(stage, seen, rollout, stage.record.step, now, journal)
    stage = _weighted(stage, seen, rollout, now)
    if entry.kind is StepKind.LOAD_TEST:
        return _load_test(stage, seen, rollout, entry, now, journal)
    record = stage.record
    if entry.hold is None:
        return stage
    in_force = stage.weight(stage.canary) == weight_of(rollout, record.step)
    passed = judged is None or judged.outcome is Outcome.PASSED
    over = in_force and watched_seconds(record, now) >= entry.hold and record.requests >= entry.min_requests
    if over and passed and reading_of(seen.revisions, stage.canary).ready:
        return enter(stage, seen, rollout, record.step + 1, now, journal)
    late = watched_seconds(record, now) >= entry.hold + rollout.guard.deadline
    if judged is not None and not passed and late and rollout.guard.rollback_when_inconclusive:
        message = f"no verdict within {rollout.guard.deadline:g} s: {judged.record.message}"
        return rollback.reject(stage, seen, "DeadlineExceeded", message, now, journal)
    return stage


def _weighted(stage: Stage, seen: Observation, rollout: Rollout, now: float) -> Stage:
    """The step's weight, once the canary can carry it: a canary that is short of pods would look slow."""
    weight, record = weight_of(rollout, stage.record.step), stage.record
    if weight == stage.weight(stage.canary):
        return stage
    if weight > stage.weight(stage.canary) and not affordable.affords(stage, seen, weight):
        return stage
    began = begin_phase(record, record.phase, now)
    began = replace(
        began, paused=record.paused, traffic_since=now if record.traffic_since is None else record.traffic_since
    )
    return replace(stage, traffic=split_traffic(stage.stable, stage.canary, weight), record=began)


def _load_test(
    stage: Stage, seen: Observation, rollout: Rollout, entry: RolloutStep, now: float, journal: Journal
) -> Stage:
    """Wait for the Job's result, compare it with the stable's stored one."""
    known = {record.hash: record.load_test for record in seen.status.revisions}
    result, found = known.get(stage.canary), seen.load_test
    if not result and found is not None and found.failure:
        return rollback.reject(stage, seen, "LoadTest", f"the load test failed: {found.failure}", now, journal)
    if not result and found is not None:
        result = found.result
    if not result:
        if entry.hold is not None and watched_seconds(stage.record, now) > entry.hold:
            message = f"the load test has not ended within {entry.hold:g} s"
            return rollback.reject(stage, seen, "LoadTest", message, now, journal)
        return stage
    compared = load_test.compare(result, known.get(stage.stable) or {}, rollout.guard)
    if compared.failure:
        return rollback.reject(stage, seen, "LoadTest", compared.failure, now, journal)
    journal.note("LoadTestPassed", compared.message)
    return enter(stage, seen, rollout, stage.record.step + 1, now, journal)
