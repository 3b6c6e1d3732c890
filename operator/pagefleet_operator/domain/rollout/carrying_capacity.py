"""The traffic that a revision can carry, and the replicas that a rollback needs.

A rollback moves no more traffic at once than the last good revision can carry. The replicas that it needs are added to
what the autoscaler recommends: they only ever raise a number, and never beyond spec.scaling.max.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pagefleet_operator.domain.base.absence import tolerated_unready
from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.stage import Stage, watched_seconds
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.domain.status.turn import SpecTurn, Turn


def desired_replicas(observation: Observation, revision: str) -> int:
    """The replicas that were last decided for a revision."""
    return next((record.desired for record in observation.status.revisions if record.hash == revision), 0)


def replicas_to_carry_all(turn: Turn, stage: Stage, bad: str, good: str) -> int:
    """Count the replicas with which `good` can serve all traffic.

    While `good` has traffic of its own, they are those that were retained for it: a stable never shrinks beside a
    canary. When all traffic is on `bad`, they are at least as many as serve there now.
    """
    retained = desired_replicas(turn.observation, good)
    if stage.weight(good):
        return max(1, retained)
    return max(1, retained, turn.reading(bad).ready)


def percent_carried(reading: RevisionReading, needed: int) -> int:
    """The percentage of all traffic that a revision can take now, when it needs `needed` replicas for all of it.

    It takes all traffic from half of those replicas on: the others are being raised, and the gateway sheds by priority
    meanwhile. Below half it takes its share, and nothing without a ready pod.
    """
    if not reading.ready:
        return 0
    return 100 if 2 * reading.ready >= needed else 100 * reading.ready // needed


def canary_needs(turn: Turn, stage: Stage, percent: int) -> int:
    """Count the ready pods that the canary needs for `percent` of all traffic.

    They are counted from the replicas that the stable should have: with those that are ready now, a stable whose readiness
    fails would let a tiny canary take everything.
    """
    stable = max(turn.reading(stage.stable).ready, desired_replicas(turn.observation, stage.stable))
    return max(1, math.ceil(stable * percent / 100))


def canary_can_carry(turn: Turn, stage: Stage, percent: int) -> bool:
    """Whether the canary has the ready pods for `percent` of all traffic, as far as they need to be ready."""
    needed = canary_needs(turn, stage, percent)
    return turn.reading(stage.canary).ready >= needed - tolerated_unready(needed)


def shortage(turn: SpecTurn, stage: Stage, percent: int) -> str:
    """Why the rollout is given up when the canary has been too small for `percent` of all traffic for longer than the guard's
    deadline; "" while it is not. A stable with fewer ready pods than the canary is nothing to go back to."""
    deadline, canary = turn.rollout.guard.deadline, turn.reading(stage.canary)
    if watched_seconds(stage.record, turn.now) <= deadline or turn.reading(stage.stable).ready < canary.ready:
        return ""
    fault = next((f": {pod.fault.message}" for pod in canary.pods if pod.fault), "")
    return (
        f"revision {stage.canary} has {canary.ready} of the {canary_needs(turn, stage, percent)} ready pods that "
        f"{percent} % of the traffic needs, for more than {deadline:g} s (spec.rollout.guard.deadline){fault}"
    )


def raise_for_rollback(turn: Turn, stage: Stage, replicas: Mapping[str, int], maximum: int) -> dict[str, int]:
    """Raise `replicas` to the numbers that a rollback under way needs, at most to `maximum`."""
    raised = dict(replicas)
    if stage.record.phase is Phase.ROLLING_BACK:
        raised[stage.stable] = max(raised.get(stage.stable, 0), min(stage.record.needed, maximum))
        # The revision that is given up keeps its pods until its traffic is gone.
        retained = desired_replicas(turn.observation, stage.canary) or turn.reading(stage.canary).replicas or 1
        raised[stage.canary] = max(raised.get(stage.canary, 0), retained)
    return raised
