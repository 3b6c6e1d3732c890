"""Protects the demo's own arithmetic: the binomial interval its split is held to, its quantiles, its idea of a cut."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from pagefleet_local.demo.load import Load, Sample, binomial_interval, quantile


@pytest.mark.parametrize(("trials", "share"), [(1, 0.1), (50, 0.1), (200, 0.5), (333, 0.9)])
def test_the_interval_holds_its_confidence_and_no_shorter_one_does(trials: int, share: float) -> None:
    low, high = binomial_interval(trials, share)
    mass = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    assert sum(mass[low : high + 1]) >= 0.99
    assert sum(mass[:low]) <= 0.005
    assert sum(mass[high + 1 :]) <= 0.005


def test_a_wrong_split_falls_outside() -> None:
    low, high = binomial_interval(200, 0.1)
    assert low <= 20 <= high
    assert not low <= 60 <= high


def test_quantile_is_the_nearest_rank() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile(range(1, 101), 0.95) == 95
    assert math.isnan(quantile([], 0.95))


def test_a_stream_without_finish_reason_is_a_cut() -> None:
    whole = Sample(0.0, "a", 200, 0.1, 0.2, 3, "stop")
    assert not whole.truncated
    assert Sample(0.0, "a", 200, 0.1, 0.2, 3, None).truncated
    assert not Sample(0.0, "a", 503, None, 0.2, 0, None).truncated


async def test_a_drained_load_sends_nothing_more() -> None:
    """An arrival that was waited for when the load was drained would be counted by the gateway and by no scene."""
    waiting = asyncio.Event()

    class Arrivals(random.Random):
        def expovariate(self, lambd: float = 1.0) -> float:
            waiting.set()
            return 0.05

    load = Load("http://127.0.0.1:9")  # nothing answers there: a request ends at once, with an error
    load._random = Arrivals()
    async with load:
        load.rate = 1.0
        await waiting.wait()
        await load.drain()
        await asyncio.wait({load._pump}, timeout=0.2)
        assert load.samples == [] and not load.in_flight
