"""Protects the choice of a setting on a calibration trace: the cheapest that attains the goal, else the one that comes nearest."""

from __future__ import annotations

import pytest

from pagefleet_simulator.calibrate import Tried, best
from pagefleet_simulator.fleet.view import Scaler
from pagefleet_simulator.scalers.kpa import Kpa

KPA: Scaler = Kpa(10.0)


def tried(attainment: float, hours: float) -> Tried:
    return Tried(KPA, attainment, hours)


def test_the_cheapest_that_attains_the_goal_is_chosen() -> None:
    costly, cheap = tried(0.99, 9.0), tried(0.95, 5.0)
    assert best([costly, cheap, tried(0.949, 1.0)]) is cheap
    assert best([costly, cheap], goal=0.98) is costly


def test_without_one_the_nearest_is_chosen_and_of_equals_the_cheapest() -> None:
    assert best([near := tried(0.9001, 3.0), tried(0.9, 4.0), tried(0.5, 1.0)]) is near
    assert best([tried(0.9, 4.0), cheap := tried(0.9, 3.0)]) is cheap


def test_nothing_that_was_tried_is_an_error() -> None:
    with pytest.raises(ValueError):
        best([])
