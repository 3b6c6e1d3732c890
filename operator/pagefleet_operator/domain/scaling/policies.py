"""Limits on one decision: bounds, step policies as an HPA has them (pods or percent per period), and past changes.

The step policies and the damping of flaps both count past changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pagefleet_operator.domain.spec.scaling import Policy, Scaling
from pagefleet_operator.domain.status.status import ScaleStep

RETAINED_SECONDS = 1800.0
MAX_STEPS = 30
TURN_SECONDS = 600.0  # an increase this soon after a decrease takes the decrease back
MAX_TURNS = 3


def bounded(replicas: int, scaling: Scaling) -> int:
    """The number within `min` and `max`."""
    return max(scaling.min, min(scaling.max, replicas))


def limited(target: int, current: int, steps: Sequence[ScaleStep], scaling: Scaling, now: float) -> int:
    """The target, or the number nearest to it that the policies of its direction allow.

    Of several policies the one that allows the largest change counts.
    """
    if target > current and scaling.up_policies:
        return min(target, max(current, *(_up(policy, current, steps, now) for policy in scaling.up_policies)))
    if target < current and scaling.down_policies:
        return max(target, min(current, *(_down(policy, current, steps, now) for policy in scaling.down_policies)))
    return target


def remembered(steps: Sequence[ScaleStep], change: int, now: float) -> tuple[ScaleStep, ...]:
    """The past changes with a new one; old changes are dropped."""
    return (*_retained(steps, now), ScaleStep(now, change))[-MAX_STEPS:]


def turns(steps: Sequence[ScaleStep], current: int, now: float) -> int:
    """Count the small decreases of the last half hour that were taken back within ten minutes.

    They are a sign of noise. An increase larger than the decrease is a burst and does not count.
    """
    small = _small(current)
    taken_back = sum(
        1
        for first, second in pairwise(_retained(steps, now))
        if first.change < 0 < second.change <= small and second.time - first.time < TURN_SECONDS
    )
    return min(MAX_TURNS, taken_back)


def noisy(steps: Sequence[ScaleStep], current: int, now: float) -> bool:
    """Whether there was a small increase in the last half hour: a sign of noise, not of a burst."""
    return any(0 < step.change <= _small(current) and 0 <= now - step.time < RETAINED_SECONDS for step in steps)


def last_up(steps: Sequence[ScaleStep], now: float) -> float | None:
    """The time of the last increase."""
    return max((step.time for step in steps if step.change > 0 and step.time <= now), default=None)


def _retained(steps: Sequence[ScaleStep], now: float) -> list[ScaleStep]:
    return [step for step in steps if now - RETAINED_SECONDS < step.time <= now]


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
