"""Protects `make soak`'s judgement: memory that grows slowly and for ever is found by the days until the pod's limit, and
warm-up, noise and a process that gives memory back are not."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from faults.growth import Growth, growth, limits, together

ROOT = Path(__file__).resolve().parents[2]


def readings(slope: float, noise: float = 0.0, warm: float = 0.0) -> list[tuple[float, float]]:
    """An hour, every five seconds: 100 MiB, `slope` MiB per hour, and `warm` MiB more within the first ten minutes."""
    chance = random.Random(1)
    return [
        (at, 100.0 + slope * at / 3600 + chance.gauss(0, noise) + warm * min(at / 600, 1.0)) for at in range(0, 3601, 5)
    ]


def test_slow_growth_is_found_by_the_days_to_the_limit() -> None:
    found = growth(readings(6.0, noise=0.3))
    assert found.slope == pytest.approx(6.0, abs=0.5)
    assert found.days(2048.0) == pytest.approx((2048 - 106) / 6 / 24, rel=0.1)


def test_neither_noise_nor_warm_up_nor_less_memory_is_growth() -> None:
    assert growth(readings(0.0, noise=1.0)).days(512.0) > 30
    assert growth(readings(0.0, noise=0.1, warm=200.0)).days(512.0) > 30
    assert growth(readings(-3.0)).days(512.0) == math.inf


def test_a_pod_at_its_limit_has_no_day_left() -> None:
    assert Growth(512.0, 0.0, 1.0).days(512.0) == 0.0


def test_a_pod_is_the_sum_of_its_processes() -> None:
    both = together([[(0.0, 1.0), (5.0, 2.0)], [(0.0, 10.0), (5.0, 30.0)]])
    assert both == [(0.0, 11.0), (5.0, 32.0)]


def test_the_limits_are_those_of_the_manifests() -> None:
    assert limits(ROOT) == {"operator": 512.0, "gateway": 2048.0, "engine": 2048.0}
