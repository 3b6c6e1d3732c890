"""Protects the verdict of bench/simulator_reality.py: the prediction is that of the requests that were sent, its error counts in both
directions, and the median over the runs decides."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

import simulator_reality as reality
from cpubench.workload import Request

from pagefleet_simulator.fleet.profile import Profile, StepTime

STEP = StepTime(base=0.01, prefill=0.001, decode=0.002)
PROFILE = Profile("measured", STEP, 2048, step_tokens=512)
WELL = reality.Quantiles(0.1, 0.2, 0.01, 0.02)


def test_a_request_alone_takes_what_the_profile_says() -> None:
    found = reality.predicted(PROFILE, [Request(tuple(range(100)), 11)])
    assert found.ttft_p50 == found.ttft_p95 == pytest.approx(0.01 + 100 * 0.001)
    assert found.tpot_p50 == pytest.approx(0.01 + 0.002, rel=0.02)


def test_a_request_behind_another_waits_for_its_prompt() -> None:
    alone = reality.predicted(PROFILE, [Request((1,) * 400, 5)])
    both = reality.predicted(PROFILE, [Request((1,) * 400, 5), Request((2,) * 400, 5, 0.05)])
    assert both.ttft_p95 > 1.2 * alone.ttft_p95


@pytest.mark.parametrize(
    ("predictions", "missed"),
    [((0.2, 0.2, 0.2), 0), ((0.2, 0.21, 0.9), 0), ((0.2, 0.3, 0.3), 1), ((0.1, 0.1, 0.2), 1)],
)
def test_the_median_error_of_the_p95_decides(
    predictions: tuple[float, ...], missed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        reality.Compared(0.5, seed, 1.0, WELL, reality.Quantiles(0.1, p95, 0.01, 0.02), 0.0)
        for seed, p95 in enumerate(predictions)
    ]
    assert reality.verdict(runs, True, None) == missed
    assert reality.verdict(runs, False, None) == 0
    assert ("MISSED" in capsys.readouterr().out) is bool(missed)
