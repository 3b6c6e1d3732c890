"""Protects the shapes of waves, sawtooth and flash crowd: their heights and their times are those that docs/simulator.md states."""

from __future__ import annotations

import numpy as np
import pytest

from pagefleet_simulator.traces import synthetic

PEAK = 40.0


def rates(name: str, seed: int = 1) -> np.ndarray:
    """Requests of each minute, per second."""
    trace = synthetic.build(name, PEAK, seed)
    at = np.array([arrival.at for arrival in trace.arrivals])
    return np.histogram(at, bins=round(trace.seconds / 60), range=(0, trace.seconds))[0] / 60


def test_three_waves_go_from_a_fifth_of_the_peak_to_the_peak() -> None:
    found = rates("waves")
    assert len(found) == 120
    for top in (20, 60, 100):
        assert found[top - 2 : top + 2].mean() == pytest.approx(PEAK, rel=0.15)
    for valley in (40, 80):
        assert found[valley - 2 : valley + 2].mean() == pytest.approx(0.2 * PEAK, rel=0.25)


def test_a_sawtooth_rises_for_twenty_minutes_and_falls_at_once() -> None:
    found = rates("sawtooth")
    for tooth in range(6):
        rising = found[20 * tooth : 20 * tooth + 20]
        assert rising[-2:].mean() == pytest.approx(PEAK * 0.96, rel=0.2)
        assert rising[:2].mean() == pytest.approx(PEAK * 0.24, rel=0.3)


def test_a_flash_crowd_is_ten_times_as_many_within_ten_seconds() -> None:
    found = rates("flash")
    quiet, crowd, after = found[:24].mean(), found[25:39].mean(), found[40:].mean()
    assert crowd == pytest.approx(10 * quiet, rel=0.15)
    assert after == pytest.approx(quiet, rel=0.15)
    assert found[24] > 0.7 * crowd, "the whole rise is within its first minute"
