"""Decides when a service is due again.

While a canary is judged, the next decision follows the end of a slice of the gateways, so that a verdict waits for no old
measurement. The first half minute of a weight is decided about at every slice, and so is a canary with the least evidence against
it. All other decisions about a canary change nothing, so there are fewer of them.
"""

from __future__ import annotations

from zlib import crc32

from pagefleet_operator.domain.spec.rollout import Rollout
from pagefleet_operator.domain.status.stage import Stage, watched_seconds
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.domain.status.turn import SpecTurn, Turn

BUSY_SECONDS, IDLE_SECONDS, CALM_SECONDS = 2.0, 5.0, 10.0
CLOSED_SECONDS = (0.1, 0.5)  # after a slice's end it is read
YOUNG_SECONDS = 30.0  # of a weight
SOUND_EVIDENCE = 0.5  # a sound canary's is below it for almost all of its time (an e-value; a conviction takes 100)


def next_decision(turn: Turn, stage: Stage, *, moving: bool) -> float:
    """The seconds until a service is due again. `moving`: something beside its rollout moves or becomes due by time.

    Services follow one another, so that they do not ask the gateways all at once.
    """
    if not (moving or stage.canary or not stage.traffic):
        return IDLE_SECONDS
    observation = turn.observation
    length = observation.slices[-1].seconds if stage.canary and observation.slices else 0.0
    if not 0 < length <= BUSY_SECONDS:
        return BUSY_SECONDS
    first, last = CLOSED_SECONDS
    closed = first + (last - first) * (crc32(observation.uid.encode()) % 1000) / 1000
    left = length - (turn.now - closed) % length
    skipped = 0 if moving or not _is_calm(turn, stage) else round(CALM_SECONDS / length) - 1
    return (left if left >= first else left + length) + skipped * length


def _is_calm(turn: Turn, stage: Stage) -> bool:
    """Whether nothing speaks against the canary, and nothing becomes due before the next decision."""
    record = stage.record
    if not isinstance(turn, SpecTurn) or record.phase is not Phase.STEP or record.low_since is not None:
        return False
    watched = watched_seconds(record, turn.now)
    due = any(0 <= at - watched <= CALM_SECONDS + BUSY_SECONDS for at in _ends(turn.rollout, record.step))
    suspicious = any(signal.evidence >= SOUND_EVIDENCE for signal in record.verdicts)
    return bool(record.verdicts) and watched >= YOUNG_SECONDS and not due and not suspicious


def _ends(rollout: Rollout, step: int) -> tuple[float, ...]:
    """The times of a step at which it may end, in seconds since its begin."""
    hold = rollout.steps[step].hold if step < len(rollout.steps) else None
    return () if hold is None else (hold, hold + rollout.guard.deadline)
