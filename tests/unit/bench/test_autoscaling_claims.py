"""Protects the claims of bench/autoscaling.py: a seed that attains less is shown beside the median, and one that flaps is a miss."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

import autoscaling

from pagefleet_simulator.scalers.ours import Ours

OURS = Ours(autoscaling.SCALING)


def result(attainment: float, flaps: int) -> autoscaling.Result:
    return autoscaling.Result(autoscaling.Job("noise", 1.0, 1, OURS), attainment, 10.0, 3, flaps, 0.0)


@pytest.mark.parametrize("flaps", [0, 1])
def test_one_seed_that_flaps_under_noise_is_a_miss_and_the_lowest_is_shown(flaps: int) -> None:
    row = autoscaling._row([result(0.96, 0), result(0.97, 0), result(0.934, flaps)], OURS)
    (text, attained), (_, calm) = autoscaling.judge({"noise": [row, row]}, 0.95)
    assert (row.attainment, row.flaps) == (0.96, 0)
    assert "of the seeds at least 93.40%" in text
    assert (attained, calm) == (True, flaps == 0)
