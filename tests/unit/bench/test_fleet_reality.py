"""Protects bench/fleet_reality.py: the arrivals have the rates of their phases, the simulator scales the same service with the same requests,
and the medians of both errors decide."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

import fleet_reality as reality

from pagefleet_simulator.fleet.fit import Fit
from pagefleet_simulator.fleet.profile import StepTime

KNOWN = reality.Known(Fit(StepTime(base=0.02, prefill=0.001, decode=0.002), 0.0, 100), saturation=1.0, startup=10.0)
SCALING = {**reality.SCALING, "startup": "10s"}


def test_requests_arrive_at_the_rates_of_the_phases_and_share_no_prompt() -> None:
    asked = reality.arriving(((0.5, 1000.0), (2.0, 1000.0)), saturation=2.0, seed=1)
    early = sum(one.at < 1000.0 for one in asked)
    assert early == pytest.approx(1000, rel=0.1) and len(asked) - early == pytest.approx(4000, rel=0.05)
    assert [one.at for one in asked] == sorted(one.at for one in asked)
    assert len({one.prompt[:16] for one in asked}) == len(asked)


def test_a_fleet_without_load_is_one_replica() -> None:
    asked = reality.arriving(((0.05, 300.0),), 1.0, 1)
    found = reality.predicted(KNOWN, asked, SCALING, 300.0)
    assert found.replica_seconds == pytest.approx(300.0) and found.most_replicas == 1 and found.attained == 1.0


def test_a_fleet_with_more_load_than_a_replica_carries_grows() -> None:
    asked = reality.arriving(((3.0, 300.0),), 1.0, 1)
    found = reality.predicted(KNOWN, asked, SCALING, 300.0)
    assert found.replica_seconds > 400.0 and found.most_replicas >= 2


@pytest.mark.parametrize(
    ("hours", "ttft", "missed"), [(1.07, 1.0, 0), (0.93, 1.0, 0), (1.09, 1.0, 1), (0.9, 1.0, 1), (1.0, 1.2, 1)]
)
def test_both_medians_decide(hours: float, ttft: float, missed: int, capsys: pytest.CaptureFixture[str]) -> None:
    real = reality.Figures(1000.0, 3, 0.1, 0.5, 1.0)
    model = reality.Figures(1000.0 * hours, 3, 0.1, 0.5 * ttft, 1.0)
    wild = reality.Figures(5000.0, 3, 0.1, 5.0, 1.0)
    runs = [reality.Compared(seed, 100, real, model) for seed in range(2)] + [reality.Compared(2, 100, real, wild)]
    assert reality.verdict(runs, True, None) == missed
    assert reality.verdict(runs, False, None) == 0
    assert ("MISSED" in capsys.readouterr().out) is bool(missed)
