"""A fleet that noise has raised lately keeps a replica that it could spare, but not while arrivals fall by a trend: a trend is no noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagefleet_operator.domain.scaling.autoscale import size
from pagefleet_operator.domain.scaling.demand import demand
from pagefleet_operator.domain.scaling.load import Totals
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
    """Return arrivals that end with the last three minutes, in steps of ten seconds."""
    return ServiceLoad(age=2.0, arrivals=(8.4,) * 162 + tuple(last.tolist()))


FALLING, LEVEL = arriving(np.linspace(8.4, 6.0, 18)), arriving(np.full(18, 6.0))


@pytest.mark.parametrize(("load", "raised", "replicas"), [(LEVEL, False, 7), (LEVEL, True, 8), (FALLING, True, 7)])
def test_noise_holds_a_replica_that_a_trend_lets_go(load: ServiceLoad, raised: bool, replicas: int) -> None:
    steps = (ScaleStep(NOW - 900, 1),) * raised
    decided = size(spared(), load, 8, ScalingRecord("r1", startup=60.0, steps=steps), SCALING, NOW)
    assert decided.replicas == replicas


def falls(load: ServiceLoad) -> bool:
    return demand(spared(), load, SCALING, 60.0, 60.0, 900.0).falling


def test_only_what_still_falls_falls() -> None:
    assert falls(FALLING)
    assert not falls(LEVEL)
    assert not falls(arriving(np.concatenate([np.linspace(8.4, 6.0, 9), np.linspace(6.0, 7.0, 9)]))), "it rises again"
    assert not falls(replace(FALLING, age=60.0)), "nobody knows"


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_arrivals_is_no_fall(seed: int) -> None:
    """+-10 % each half-minute, and Poisson."""
    random = np.random.default_rng(seed)
    steady = 14.0 * np.repeat(random.uniform(0.9, 1.1, 6), 3)
    assert not falls(arriving(random.poisson(10 * steady) / 10))
