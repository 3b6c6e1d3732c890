"""The built-in traces by name, drawn from a seed. They are shapes only; the caller chooses the highest rate.

Arrivals are a Poisson process whose rate follows the shape, and within each minute a gamma factor (`BURSTINESS`): real
LLM traffic is burstier than Poisson (BurstGPT, arXiv:2401.17644, section 3). Lengths are lognormal; in "heavy" they
have Pareto tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagefleet_simulator.fleet.request import Arrival

BURSTINESS = 0.08  # coefficient of variation of the rate from minute to minute
NOISE = 0.10
LONGEST_SECONDS = 366 * 86400.0  # of any trace


@dataclass(frozen=True)
class Lengths:
    """Tokens: lognormal with these medians and sigmas, cut at `most`."""

    prompt: float = 800.0
    prompt_sigma: float = 0.7
    output: float = 250.0
    output_sigma: float = 0.6
    most: int = 8000

    @property
    def means(self) -> tuple[float, float]:
        """Of prompt and output, without the cut."""
        return self.prompt * math.exp(self.prompt_sigma**2 / 2), self.output * math.exp(self.output_sigma**2 / 2)


@dataclass(frozen=True)
class Trace:
    """Arrivals over `seconds`; the last one is before the end."""

    name: str
    seconds: float
    arrivals: tuple[Arrival, ...]


# A shape gives the share of the peak rate (0 to 1) at `at` seconds of `total`.
Shape = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def _steady(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    return np.full_like(at, 0.6)


def _noise(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """A steady rate, moved by up to 10 % either way, again each half minute."""
    factors = random.uniform(1 - NOISE, 1 + NOISE, int(total // 30) + 2)
    return np.asarray(0.6 * factors[(at // 30).astype(int)])


def _step(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    return np.select([at < total * 0.3, at < total * 0.65], [0.3, 0.9], 0.45)


def _burst(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """A quiet base and bursts of 3 to 8 minutes about every 30, each up within 30 s and down within 60 s."""
    share, begin = np.full_like(at, 0.25), random.uniform(300, 900)
    while begin < total:
        length, height = random.uniform(180, 480), random.uniform(0.6, 1.0)
        up = np.clip((at - begin) / 30, 0, 1)
        down = np.clip(1 - (at - begin - length) / 60, 0, 1)
        share = np.maximum(share, 0.25 + (height - 0.25) * np.minimum(up, down) * (at >= begin))
        begin += length + random.uniform(900, 2400)
    return share


def _diurnal(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """A day: lowest at its start, two humps as offices have, a night at a tenth of the peak."""
    hour = at / total * 24
    morning = np.exp(-(((hour - 11) / 2.6) ** 2))
    evening = 0.8 * np.exp(-(((hour - 17) / 3.2) ** 2))
    return np.asarray(0.1 + 0.9 * np.minimum(1.0, morning + evening))


def _waves(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """Three waves from a fifth of the peak to the peak, each a third of the trace."""
    return np.asarray(0.2 + 0.8 * np.sin(np.pi * 3 * at / total) ** 2)


def _sawtooth(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """A rise for twenty minutes, then at once back to a fifth; again and again."""
    return np.asarray(0.2 + 0.8 * (at % 1200) / 1200)


def _flash(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """Ten times as many requests within ten seconds, for a quarter of the trace."""
    return np.asarray(0.1 + 0.9 * np.clip((at - 0.4 * total) / 10, 0, 1) * (at < 0.65 * total))


def _calibration(at: np.ndarray, total: float, random: np.random.Generator) -> np.ndarray:
    """The trace of calibrations: a slow rise and fall, a step up and down, and a burst, one after the other."""
    part = at / total
    slow = 0.25 + 0.55 * np.sin(np.pi * np.clip(part / 0.4, 0, 1)) ** 2
    burst = np.where((part > 0.75) & (part < 0.82), 0.95, 0.3)
    return np.asarray(np.select([part < 0.4, part < 0.65], [slow, 0.75], burst))


SHAPES: dict[str, Shape] = {
    "steady": _steady, "noise": _noise, "step": _step, "burst": _burst, "diurnal": _diurnal, "heavy": _steady,
    "waves": _waves, "sawtooth": _sawtooth, "flash": _flash,
}  # fmt: skip
EVERY = {**SHAPES, "calibration": _calibration}
HOURS = {
    "calibration": 1.0,
    "steady": 2.0,
    "noise": 3.0,
    "step": 2.0,
    "burst": 4.0,
    "diurnal": 24.0,
    "heavy": 2.0,
    "waves": 2.0,
    "sawtooth": 2.0,
    "flash": 1.0,
}


def build(name: str, peak: float, seed: int = 0, hours: float | None = None, lengths: Lengths | None = None) -> Trace:
    """`peak` requests per second at the shape's highest. Raises KeyError for an unknown name."""
    total = 3600 * (hours or HOURS[name])
    at, prompts, outputs = draw(name, peak, total, np.random.default_rng([seed, *name.encode()]), lengths or Lengths())
    arrivals = (Arrival(float(a), int(p), int(o)) for a, p, o in zip(at, prompts, outputs, strict=True))
    return Trace(name, total, tuple(arrivals))


def draw(
    name: str, peak: float, total: float, random: np.random.Generator, lengths: Lengths
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, prompt tokens, output tokens."""
    seconds = np.arange(math.ceil(total), dtype=float)
    rate = rates(name, peak, total, random, seconds)
    counts = random.poisson(rate)
    at = np.sort(np.repeat(seconds, counts) + random.random(int(counts.sum())))
    at = at[at < total]
    if name == "heavy":
        # Means as without the tails: a share of Pareto(1.5) prompts and Pareto(1.6) answers.
        prompts = lengths.prompt / 2 * (1 + random.pareto(1.5, len(at)))
        outputs = lengths.output / 2 * (1 + random.pareto(1.6, len(at)))
    else:
        prompts = lengths.prompt * np.exp(random.normal(0, lengths.prompt_sigma, len(at)))
        outputs = lengths.output * np.exp(random.normal(0, lengths.output_sigma, len(at)))
    limit = lengths.most
    return at, np.clip(prompts, 1, limit).astype(int), np.clip(outputs, 1, limit).astype(int)


def rates(name: str, peak: float, total: float, random: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    """Requests per second at each of `seconds`."""
    shape = peak * EVERY[name](seconds, total, random)
    if name == "noise":
        return shape
    factors = random.gamma(1 / BURSTINESS**2, BURSTINESS**2, int(total // 60) + 2)
    return np.asarray(shape * factors[(seconds // 60).astype(int)])
