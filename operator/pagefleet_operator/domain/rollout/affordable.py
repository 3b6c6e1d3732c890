"""What a revision can carry: how much traffic a rollback may move at once, and the replicas that are kept or raised for
it. It only ever raises what the autoscaler wished, never beyond spec.scaling.max."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pagefleet_operator.domain.status.observation import Observation, RevisionReading
from pagefleet_operator.domain.status.stage import Stage, reading_of
from pagefleet_operator.domain.status.status import Phase


def desired(seen: Observation, revision: str) -> int:
    """The replicas last decided for a revision."""
    return next((record.desired for record in seen.status.revisions if record.hash == revision), 0)


def needed(stage: Stage, seen: Observation, bad: str, good: str) -> int:
    """Replicas with which `good` could serve everything.

    While it has traffic of its own, what was retained for it (it never shrinks beside a canary); when everything is on
    `bad`, as many as serve there now.
    """
    retained = desired(seen, good)
    if stage.weight(good):
        return max(1, retained)
    return max(1, retained, reading_of(seen.revisions, bad).ready)


def weight(found: RevisionReading, wanted: int) -> int:
    """Percent of all traffic that a revision can take now.

    All of it from half of the wanted replicas on: the rest is being raised, and the gateway sheds by priority
    meanwhile. Below that in proportion; nothing without a ready pod.
    """
    if not found.ready:
        return 0
    return 100 if 2 * found.ready >= wanted else 100 * found.ready // wanted


def affords(stage: Stage, seen: Observation, percent: int) -> bool:
    """Whether the canary has the ready pods for `percent` of what the stable serves."""
    canary, stable = reading_of(seen.revisions, stage.canary), reading_of(seen.revisions, stage.stable)
    return canary.ready >= max(1, math.ceil(stable.ready * percent / 100))


def raised(stage: Stage, seen: Observation, replicas: Mapping[str, int], most: int) -> dict[str, int]:
    """`replicas` with what safety asks for on top."""
    result = dict(replicas)
    if stage.record.phase is Phase.ROLLING_BACK:
        result[stage.stable] = max(result.get(stage.stable, 0), min(stage.record.needed, most))
        # What still serves keeps its pods until its traffic is gone.
        kept = desired(seen, stage.canary) or reading_of(seen.revisions, stage.canary).replicas or 1
        result[stage.canary] = max(result.get(stage.canary, 0), kept)
    return result
