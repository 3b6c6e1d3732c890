"""Profiles are checked when they are read, fitted from an engine's measurements, and say where they come from."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from pagefleet_simulator.fleet import profile as profiles
from pagefleet_simulator.fleet.capacity import sustainable
from pagefleet_simulator.fleet.fit import FitError, Measured, fit, scrapes, steps
from pagefleet_simulator.fleet.profile import ProfileError, StepTime, dump, parse
from pagefleet_simulator.fleet.roofline import H100, LLAMA_8B, LLAMA_70B, derive

TRUE = StepTime(base=0.004, prefill=2e-4, decode=1e-3, kv=3e-7)


def measured(count: int, noise: float = 0.0) -> list[Measured]:
    random = np.random.default_rng(3)
    points = []
    for _ in range(count):
        prefill, decode = float(random.integers(0, 256)), float(random.integers(1, 64))
        kv = decode * float(random.integers(50, 2000))
        seconds = TRUE.seconds(prefill, decode, kv) * (1 + noise * float(random.standard_normal()))
        points.append(Measured(seconds, prefill, decode, kv))
    return points


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 1e-6), (0.05, 0.1)])
def test_the_fit_finds_what_made_the_times(noise: float, tolerance: float) -> None:
    fitted = fit(measured(400, noise))
    for name, value in asdict(TRUE).items():
        assert getattr(fitted.step, name) == pytest.approx(value, rel=tolerance), name
    assert fitted.error == pytest.approx(noise * 0.8, abs=0.01)


def test_no_coefficient_is_negative_where_least_squares_would_make_one_so() -> None:
    fitted = fit([Measured(0.01 + 0.001 * d - 1e-7 * d * 100, 0, d, d * 100) for d in range(1, 40)])
    assert min(asdict(fitted.step).values()) >= 0
    assert fitted.error < 0.05


def test_a_fit_of_nothing_is_refused() -> None:
    with pytest.raises(FitError, match="at least 8"):
        fit(measured(3))
    with pytest.raises(FitError, match="step 0: kv must be a number"):
        steps([{"seconds": 1, "prefill": 2, "decode": 3}])
    assert len(steps([{"seconds": 1, "prefill": 2, "decode": 3, "kv": 4}])) == 1


def metrics(count: int, seconds: float, prompt: int, output: int, usage: float) -> str:
    return "\n".join(
        [
            f'pagefleet_step_seconds_sum{{model_name="m",phase="mixed"}} {seconds / 2}',
            f'pagefleet_step_seconds_sum{{model_name="m",phase="decode"}} {seconds / 2}',
            f'pagefleet_step_seconds_count{{model_name="m",phase="mixed"}} {count}',
            f'pagefleet_step_seconds_bucket{{model_name="m",phase="mixed",le="1"}} {count}',
            f'pagefleet_prompt_tokens_total{{model_name="m"}} {prompt}',
            f'pagefleet_generation_tokens_total{{model_name="m"}} {output}',
            f'pagefleet_time_to_first_token_seconds_count{{model_name="m"}} {output // 10}',
            'pagefleet_kv_pages{model_name="m"} 100',
            f'pagefleet_kv_cache_usage_perc{{model_name="m"}} {usage}',
        ]
    )


def test_scrapes_give_what_was_counted_between_them() -> None:
    texts = [metrics(10, 1.0, 100, 200, 0.5), metrics(30, 3.0, 300, 500, 0.7), metrics(5, 0.5, 10, 20, 0.1)]
    points = scrapes(texts, page_size=16)
    assert len(points) == 1  # the third comes after a restart
    assert points[0] == Measured(seconds=2.0, prefill=200.0, decode=270.0, kv=pytest.approx(960.0 * 20), count=20.0)


@pytest.mark.parametrize("name", profiles.shipped())
def test_shipped_profiles_say_where_they_come_from(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    assert profile.source.startswith(("derived, not measured", "measured"))
    assert profile.machine
    assert parse(json.loads(dump(profile))) == profile


def test_shipped_rooflines_are_what_the_program_derives() -> None:
    assert profiles.load("h100-llama-8b") == derive("h100-llama-8b", LLAMA_8B, H100)
    assert profiles.load("h100x4-llama-70b") == derive("h100x4-llama-70b", LLAMA_70B, H100, 4)


def test_the_measured_profile_of_a_gpu_is_near_the_published_figures() -> None:
    """Output tokens a second behind 1,088 tokens of context, from the table of bench/README.md."""
    step, table = profiles.load("h200-llama-8b").step, (Path(__file__).parents[3] / "bench/README.md").read_text()
    figures = dict(re.findall(r"\| Llama-3-8B bf16 batch (\d+) \| pagefleet \| ([\d,]+) \|", table))
    assert figures.keys() == {"1", "64", "256"}
    for requests, published in figures.items():
        count = int(requests)
        assert count / step.seconds(0, count, 1088 * count) == pytest.approx(
            float(published.replace(",", "")), rel=0.04
        )


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="leave nothing for KV"):
        derive("x", LLAMA_70B, H100, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pages": 0}, "pages"),
        ({"pages": "many"}, "pages"),
        ({"step": {"base": -1.0, "prefill": 0.0, "decode": 0.0}}, "step.base"),
        ({"step": {"base": 1.0}}, "missing"),
        ({"colour": 1}, "colour"),
        ({"step_tokens": 10}, "step_tokens"),
        ({"startup": {"pull": "long"}}, "startup.pull"),
        ({"startup": {"load": float("inf")}}, "startup.load"),
        ({"step": {"base": float("nan"), "prefill": 0.0, "decode": 0.0}}, "step.base"),
    ],
)
def test_a_bad_profile_names_its_field(change: dict[str, object], message: str) -> None:
    raw = json.loads(dump(profiles.load("h100-llama-8b"))) | change
    with pytest.raises(ProfileError, match=message):
        parse(raw)


def test_a_missing_profile_lists_the_shipped_ones() -> None:
    with pytest.raises(ProfileError, match="h100-llama-8b"):
        profiles.load("/nowhere.json")


def test_capacity_falls_with_length() -> None:
    profile = profiles.load("h100-llama-8b")
    assert sustainable(profile, 500, 100) > sustainable(profile, 500, 400) > sustainable(profile, 2000, 400)
