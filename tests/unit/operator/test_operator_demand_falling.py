"""Protects what a fall by a trend allows: a smaller margin before a decrease, and a decrease although noise has raised the fleet lately. A
trend counts by what is sure of it, while it goes on, and not where the user has set a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagefleet_operator.domain.scaling.autoscale import size
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.scaling.trends import decline
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScaleStep, ScalingRecord

NOW = 3000.0
SCALING = Scaling(min=1, max=20)


def spared() -> Totals:
    """Return 8 replicas that had 24 to 40 sequences each, and 20 in the last five minutes: 7 would carry these with a quarter to spare."""
    history = []
    for back in range(360, 0, -1):
        each = [24, 36, 40, 30][back // 12 % 4] if back > 60 else 20
        tokens = 8 * each / (0.02 + 0.0008 * (each + back % 3))
        load = EngineLoad(running=8 * each, kv_pages_total=8000, kv_pages_free=8000 - 60 * each, tokens=tokens)
        history.append(Sample(NOW - 5.0 * back, 8, 8, load))
    return Totals(replace(history[-1], time=NOW), slots=64, history=tuple(history))


def arriving(last: np.ndarray) -> ServiceLoad:
    """Return arrivals that end with the last five minutes, in steps of ten seconds."""
    return ServiceLoad(age=2.0, arrivals=(8.4,) * 150 + tuple(last.tolist()))


FALLING, LEVEL = arriving(np.linspace(8.4, 6.0, 30)), arriving(np.full(30, 6.0))


@pytest.mark.parametrize(("load", "raised", "replicas"), [(LEVEL, False, 7), (LEVEL, True, 8), (FALLING, True, 7)])
def test_noise_holds_a_replica_that_a_trend_lets_go(load: ServiceLoad, raised: bool, replicas: int) -> None:
    steps = (ScaleStep(NOW - 900, 1),) * raised
    decided = size(spared(), load, 8, ScalingRecord("r1", startup=60.0, steps=steps), SCALING, NOW)
    assert decided.replicas == replicas


def test_a_trend_takes_from_the_margin_down_to_half_a_replica() -> None:
    """A margin of a quarter above 5.1 replicas asks for 7. Where the load falls by a third within a start-up time, half a replica is enough."""

    def left(load: ServiceLoad, scaling: Scaling = SCALING) -> int:
        return size(spared(), load, 8, ScalingRecord("r1", startup=60.0), scaling, NOW).replicas

    assert left(LEVEL) == 7
    assert left(arriving(np.linspace(16.0, 6.0, 30))) == 6
    given = replace(SCALING, stabilization=90.0)
    assert left(arriving(np.linspace(16.0, 6.0, 30)), given) == 7, "a window that was given counts in full"
    assert decline(arriving(np.linspace(16.0, 6.0, 30)), 400.0) == 0.0, "a trend of 5 minutes tells nothing about 7"


def test_only_what_still_falls_falls() -> None:
    assert decline(FALLING, 60.0) == pytest.approx((8.4 - 6.0) / 300 / 6.2, rel=0.1), (
        "the slope over the last minute's mean"
    )
    assert decline(LEVEL, 60.0) == 0.0
    assert decline(arriving(np.concatenate([np.linspace(8.4, 6.0, 21), np.linspace(6.0, 6.6, 9)])), 60.0) == 0.0, (
        "it rises again"
    )
    assert decline(replace(FALLING, age=60.0), 60.0) == 0.0, "nobody knows"
    assert decline(None, 60.0) == 0.0


@pytest.mark.parametrize("seconds", [10, 30, 60, 300])
def test_noise_is_no_fall_or_a_small_one(seconds: int) -> None:
    """+-10 % for so many seconds each, and Poisson: within a minute it takes less than 6 % off."""
    found = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        level = np.repeat(random.uniform(0.9, 1.1, 60), seconds // 10)[random.integers(seconds // 10) :][:30]
        found.append(60 * decline(arriving(random.poisson(140 * level) / 10), 60.0))
    assert max(found) < 0.06
    assert sum(one > 0 for one in found) < 0.1 * len(found)
