"""How far one decision may go: bounds, step policies as an HPA has them (pods or percent per period), and the memory
of changes that they and the damping of flaps count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pagefleet_operator.domain.spec.scaling import Policy, Scaling
from pagefleet_operator.domain.status.status import ScaleStep

KEPT_SECONDS = 1800.0
MOST_STEPS = 30
TURN_SECONDS = 600.0  # an increase so soon after a decrease takes it back
MOST_TURNS = 3


def bounded(replicas: int, scaling: Scaling) -> int:
    return max(scaling.min, min(scaling.max, replicas))


def limited(wanted: int, current: int, steps: Sequence[ScaleStep], scaling: Scaling, now: float) -> int:
    """`wanted`, or as far towards it as the policy of its direction that allows most lets it go."""
    if wanted > current and scaling.up_policies:
        return min(wanted, max(current, *(_up(policy, current, steps, now) for policy in scaling.up_policies)))
    if wanted < current and scaling.down_policies:
        return max(wanted, min(current, *(_down(policy, current, steps, now) for policy in scaling.down_policies)))
    return wanted


def remembered(steps: Sequence[ScaleStep], change: int, now: float) -> tuple[ScaleStep, ...]:
    kept = [step for step in steps if now - KEPT_SECONDS < step.time <= now]
    return (*kept, ScaleStep(now, change))[-MOST_STEPS:]


def turns(steps: Sequence[ScaleStep], current: int, now: float) -> int:
    """Small decreases that were taken back within ten minutes, of the last half hour: noise, not a burst."""
    small = _small(current)
    recent = [step for step in steps if now - KEPT_SECONDS < step.time <= now]
    taken_back = sum(
        1
        for first, second in pairwise(recent)
        if first.change < 0 < second.change <= small and second.time - first.time < TURN_SECONDS
    )
    return min(MOST_TURNS, taken_back)


def noisy(steps: Sequence[ScaleStep], current: int, now: float) -> bool:
    """Whether there was a small increase in the last half hour: noise, not a burst."""
    return any(0 < step.change <= _small(current) and 0 <= now - step.time < KEPT_SECONDS for step in steps)


def last_up(steps: Sequence[ScaleStep], now: float) -> float | None:
    return max((step.time for step in steps if step.change > 0 and step.time <= now), default=None)


def _small(current: int) -> int:
    return max(1, round(current / 5))


def _up(policy: Policy, current: int, steps: Sequence[ScaleStep], now: float) -> int:
    before = current - sum(step.change for step in _within(policy, steps, now) if step.change > 0)
    if policy.pods is not None:
        return before + policy.pods
    return math.ceil(before * (1 + (policy.percent or 0.0)) - 1e-9)


def _down(policy: Policy, current: int, steps: Sequence[ScaleStep], now: float) -> int:
    before = current - sum(step.change for step in _within(policy, steps, now) if step.change < 0)
    if policy.pods is not None:
        return before - policy.pods
    return math.floor(before * (1 - (policy.percent or 0.0)) + 1e-9)


def _within(policy: Policy, steps: Sequence[ScaleStep], now: float) -> list[ScaleStep]:
    return [step for step in steps if now - policy.period < step.time <= now]
