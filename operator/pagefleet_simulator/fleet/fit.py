"""Fits a profile's step time to an engine's own measurements: single steps, or the counters of `/metrics` between scrapes.

The fit is by non-negative least squares (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23). Errors are
relative to each step's time; otherwise a step of one second would weigh ten thousand times a step of ten milliseconds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagefleet_contract.engine_metrics import (
    GENERATION_TOKENS,
    KV_PAGES,
    KV_USAGE,
    PREFIX_CACHE_HITS,
    PROMPT_TOKENS,
    STEP_SECONDS,
    TTFT,
)
from pagefleet_simulator.fleet.profile import StepTime

NAMES = ("base", "prefill", "decode", "kv")
MIN_STEPS = 8
_LINE = re.compile(r"^(pagefleet_\w+)(?:\{[^}]*\})? (\S+)", re.M)


class FitError(ValueError):
    """No profile can be fitted to the measurements; the message gives the reason."""


@dataclass(frozen=True)
class Measured:
    """Several steps together.

    `count` steps took `seconds`, computed `prefill` prompt tokens and `decode` single tokens, and read `kv` tokens of KV.
    """

    seconds: float
    prefill: float
    decode: float
    kv: float
    count: float = 1.0


@dataclass(frozen=True)
class Fit:
    """`error` is the mean absolute error, relative; `samples` is the number of measurements behind the fit."""

    step: StepTime
    error: float
    samples: int


def fit(measured: Sequence[Measured]) -> Fit:
    """Fit a step time. Raises FitError."""
    usable = [one for one in measured if one.seconds > 0 and one.count > 0 and one.prefill + one.decode > 0]
    if len(usable) < MIN_STEPS:
        raise FitError(f"a fit needs at least {MIN_STEPS} measured steps with work, not {len(usable)}")
    rows = np.array([[one.count, one.prefill, one.decode, one.kv] for one in usable])
    seconds = np.array([one.seconds for one in usable])
    rows = rows / seconds[:, None]
    solution = _non_negative(rows, np.ones(len(usable)))
    if not solution.any():
        raise FitError("the measured times do not grow with anything that was computed")
    error = float(np.abs(rows @ solution - 1).mean())
    return Fit(StepTime(**dict(zip(NAMES, map(float, solution), strict=True))), error, len(usable))


def _non_negative(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The best of the ordinary solutions over every choice of columns that are not negative; exact for four columns."""
    best, least = np.zeros(rows.shape[1]), float(values @ values)
    for size in range(1, rows.shape[1] + 1):
        for columns in itertools.combinations(range(rows.shape[1]), size):
            chosen = rows[:, columns]
            scale = np.abs(chosen).max(axis=0)
            if not scale.all():
                continue
            solution = np.linalg.lstsq(chosen / scale, values, rcond=None)[0] / scale
            rest = float(((chosen @ solution - values) ** 2).sum())
            if (solution >= 0).all() and rest < least - 1e-12:
                best, least = np.zeros(rows.shape[1]), rest
                best[list(columns)] = solution
    return best


def steps(raw: object) -> list[Measured]:
    """From JSON: a list of {"seconds", "prefill", "decode", "kv"[, "count"]}. Raises FitError."""
    if not isinstance(raw, list):
        raise FitError("measured steps are a JSON list")
    return [_step(number, one) for number, one in enumerate(raw)]


def _step(number: int, raw: Any) -> Measured:
    if not isinstance(raw, Mapping):
        raise FitError(f"step {number}: must be an object")
    values = {}
    for name in ("seconds", "prefill", "decode", "kv", "count"):
        value = raw.get(name, 1.0 if name == "count" else None)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise FitError(f"step {number}: {name} must be a number from 0, not {value!r}")
        values[name] = float(value)
    return Measured(**values)


def scrapes(texts: Sequence[str], page_size: int) -> list[Measured]:
    """The engine's counters between each two scrapes, without pairs that have a restart between them.

    The KV that a step reads is the mean of the KV pages in use at both ends.
    """
    measured = []
    for before, after in itertools.pairwise([_counters(text) for text in texts]):
        grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
        count = grown.get(f"{STEP_SECONDS}_count", 0.0)
        if count <= 0 or min(grown.get(name, 0.0) for name in _GROWING) < 0:
            continue
        held = [side.get(KV_PAGES, 0.0) * side.get(KV_USAGE, 0.0) for side in (before, after)]
        hits = grown.get(PREFIX_CACHE_HITS, 0.0)
        firsts = grown.get(f"{TTFT}_count", 0.0)
        measured.append(
            Measured(
                seconds=grown[f"{STEP_SECONDS}_sum"],
                prefill=max(0.0, grown.get(PROMPT_TOKENS, 0.0) - hits),
                decode=max(0.0, grown.get(GENERATION_TOKENS, 0.0) - firsts),
                kv=sum(held) / 2 * page_size * count,
                count=count,
            )
        )
    return measured


_GROWING = (
    f"{STEP_SECONDS}_count",
    f"{STEP_SECONDS}_sum",
    PROMPT_TOKENS,
    GENERATION_TOKENS,
)


def _counters(text: str) -> dict[str, float]:
    """Every sample without buckets, summed over its labels (the steps of all phases together)."""
    counters: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if not name.endswith("_bucket"):
            counters[name] = counters.get(name, 0.0) + float(value)
    return counters
