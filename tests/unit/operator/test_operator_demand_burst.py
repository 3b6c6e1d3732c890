"""Protects what the scaler knows in a burst and in noise: a replica's throughput is learned without what the prompts of a
rise take and with how sure it is, few requests that are looked at by chance are no saturation while saturation that is there is
still found, a clear rise is extended to now, one after a fall by the start-up time, noise is none, a clear fall ends the window unless the user gave one,
what made up for a shortage is no need, the tokens of a request are those of the time that both readings and arrivals
cover, and +-10 % of noise flaps nothing on the simulator's own trace, of PAGEFLEET_NOISE_HOURS (3 in the night)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pagefleet_operator.domain.scaling import throughput
from pagefleet_operator.domain.scaling.demand import Demand, demand
from pagefleet_operator.domain.scaling.inflow import flow, rate
from pagefleet_operator.domain.scaling.load import Totals
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_simulator.fleet import profile
from pagefleet_simulator.fleet.capacity import sustainable
from pagefleet_simulator.fleet.view import Bounds
from pagefleet_simulator.results.outcome import flaps
from pagefleet_simulator.scalers.ours import Ours
from pagefleet_simulator.simulation import Setting, Simulation
from pagefleet_simulator.traces import synthetic, workloads

BASE, SLOPE, PROMPT = 0.02, 0.0008, 0.15
NOW = 3000.0
NOISE_HOURS = float(os.environ.get("PAGEFLEET_NOISE_HOURS", "1"))


def speed(running: float, rise: float = 0.0) -> float:
    """Return a replica's tokens per second while `rise` requests a second come in addition."""
    return (1 - PROMPT * rise) * running / (BASE + SLOPE * running)


def test_the_prompts_of_a_rise_do_not_make_a_replica_slow() -> None:
    """A base of about 20, and a burst to 80 and back within two minutes: 2 requests a second more, then fewer."""
    running = [20, 22, 19, 21, 20, 20, 80, 80, 20, 21, 19, 20, 22]
    history = [
        Sample(
            30.0 * n + t,
            1,
            1,
            EngineLoad(running=round(a + (b - a) * t / 30), tokens=speed(a + (b - a) * t / 30, (b - a) / 30)),
        )
        for n, (a, b) in enumerate(pairwise(running))
        for t in range(0, 30, 5)
    ]
    fitted = throughput.fit(throughput.means(history), 80)
    assert fitted is not None
    assert fitted.throughput(80) == pytest.approx(speed(80), rel=0.03)
    blind = throughput.fit((replace(mean, change=0.0) for mean in throughput.means(history)), 80)
    assert blind is not None
    assert abs(blind.throughput(80) / speed(80) - 1) > 0.05, "the trace would show it"


def looked_at(rate: Callable[[float], float], seed: int, duration: float = 4.0) -> list[Sample]:
    """Half an hour on two replicas: Poisson arrivals of `rate(t)` requests a second that run for `duration` seconds each. The running ones
    are looked at each 5 s; tokens are counted over the 5 s before."""
    random = np.random.default_rng(seed)
    at = np.concatenate([second + random.random(random.poisson(rate(second))) for second in range(1800)])
    samples = []
    for look in np.arange(5.0, 1800, 5.0).tolist():
        running = int(((at <= look) & (at > look - duration)).sum())
        true = np.clip(np.minimum(look, at + duration) - np.maximum(look - 5, at), 0, None).sum() / 5
        samples.append(Sample(look, 2, 2, EngineLoad(running=running, tokens=2 * speed(float(true) / 2))))
    return samples


@pytest.mark.parametrize("seed", range(5))
def test_few_sequences_that_are_looked_at_by_chance_are_no_saturation(seed: int) -> None:
    """The load is the same throughout, so every difference is chance: no reading shows a slope."""
    fitted = throughput.fit(throughput.means(looked_at(lambda second: 1.0, seed)), 64)
    assert fitted is not None
    assert not fitted.shown
    assert fitted.throughput(64) > 8 * speed(2), "2 sequences run on a replica with 64 slots"


@pytest.mark.parametrize("seed", range(5))
def test_saturation_that_is_there_is_found_through_the_chance(seed: int) -> None:
    """The load goes up and down between 4 and 60 sequences a replica, every ten minutes."""
    history = looked_at(lambda second: 16 + 14 * float(np.sin(second / 95)), seed)
    fitted = throughput.fit(throughput.means(history), 64)
    assert fitted is not None
    assert fitted.shown
    assert fitted.throughput(64) == pytest.approx(speed(64), rel=0.1)


def test_a_quiet_chat_orders_no_replicas() -> None:
    """150 users on two replicas of 256 slots, a quarter of an hour with 2 to 12 requests in flight; then 1,500 users within a minute."""
    trace = workloads.build("live-chat-spike")
    scaling = Scaling(min=2, max=12, target=Targets(ttft=1.0))
    setting = Setting(profile.load("h100-llama-8b"), Bounds(2, 12), initial=2)
    outcome = Simulation(setting, Ours(scaling), trace.arrivals, trace.seconds).run()
    assert outcome.ends is not None
    assert [event for event in outcome.events if event.time < 900] == []
    assert max((event.after for event in outcome.events), default=2) <= 4
    assert (outcome.ends.ttft < 2).mean() > 0.99, "the promise of examples/live-chat-spike.yaml"


@pytest.mark.parametrize(("spread", "share"), [(3, 0.9), (40, 0.97)])
def test_what_was_never_seen_is_not_surely_generated(spread: int, share: float) -> None:
    """Concurrencies of 50 +- `spread`, read with 2 % of noise: far above them little is sure."""
    points = [(50 + (n * 7 % (2 * spread + 1)) - spread, 1 + 0.02 * (-1) ** (n // 2)) for n in range(60)]
    means = [
        throughput.Mean(30.0 * n, 1, r, 0, 0, speed(r) * noise, 0.0, True)
        for n, (r, noise) in enumerate([*points, (40, 1.0), (50, 1.0)])
    ]
    fitted = throughput.fit(means, 150)
    assert fitted is not None
    sure = fitted.throughput(150, 2.0) / fitted.throughput(150)
    assert sure < share if spread < 10 else sure > share
    assert fitted.throughput(50, 2.0) / fitted.throughput(50) > 0.98


def asked(
    load: ServiceLoad, busy: int = 40, ago: float = 0.0, scaling: Scaling | None = None, ages: tuple[float, ...] = ()
) -> Demand:
    """Return the demand of 8 replicas after half an hour of 24 to 40 sequences each, or of `busy` until `ago` seconds before now."""
    running = [24, 36, 40, 30]
    history = []
    for back in range(360, 0, -1):
        r = running[back // 12 % 4] if not ago else busy if back * 5 > ago else 6
        history.append(
            Sample(
                NOW - 5.0 * back,
                8,
                8,
                EngineLoad(
                    running=8 * r, kv_pages_total=8000, kv_pages_free=8000 - 60 * r, tokens=8 * speed(r + back % 3)
                ),
            )
        )
    totals = Totals(replace(history[-1], time=NOW), slots=64, history=tuple(history), ages=ages)
    return demand(totals, load, scaling or Scaling(min=1, max=99), 60.0, 90.0, 900.0)


def test_a_clear_rise_is_extended_to_now_and_a_small_one_is_not() -> None:
    usual, rising = (10.0,) * 178, ServiceLoad(age=3.0, arrivals=(10.0,) * 178 + (12.0, 24.0))
    plain = ServiceLoad(age=3.0, arrivals=(10.0,) * 178 + (24.0, 24.0))
    assert asked(rising).now > 1.2 * asked(plain).now, "twelve more in ten seconds: about ten more by now"
    noise, level = (asked(ServiceLoad(age=3.0, arrivals=(*usual, *last))) for last in ((9.0, 12.0), (10.5, 10.5)))
    assert noise.now == pytest.approx(level.now, rel=0.01), "by the minute's mean alone"


def test_a_rise_that_goes_on_is_no_jump() -> None:
    """10 to 15 requests a second within a minute and then 20 are nearly what a line leads to; 20 after a minute of 12 are a jump."""
    line = ServiceLoad(age=3.0, arrivals=(10.0,) * 172 + (10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 15.0, 20.0))
    jump = ServiceLoad(age=3.0, arrivals=(10.0,) * 172 + (12.0,) * 7 + (20.0,))
    assert rate(line, 60.0) < 20.0 < rate(jump, 60.0)


def test_replicas_that_start_already_leave_less_of_a_backlog() -> None:
    """Twice the rate for a minute. Eight replicas that have been starting for 50 s of 60 carry it from 10 s on."""
    load = ServiceLoad(age=2.0, arrivals=(10.0,) * 174 + (20.0,) * 6)
    alone, late, soon = (asked(load, ages=ages).steady for ages in ((), (5.0,) * 8, (50.0,) * 8))
    assert alone > late > soon


def test_a_rise_that_follows_a_fall_is_extended_by_the_start_up_time() -> None:
    """Arrivals fall for seven minutes and rise for three: over ten minutes they fall. The rate of the last minute, 10 a second, grows by
    0.06 a second each second, and its mean is half a minute old."""
    fall, rise = np.linspace(30.0, 2.0, 42), np.linspace(2.0, 12.5, 18)
    turned = asked(ServiceLoad(age=2.0, arrivals=(30.0,) * 120 + tuple(fall.tolist()) + tuple(rise.tolist())))
    assert turned.ahead > 1.4 * turned.steady
    fallen = asked(ServiceLoad(age=2.0, arrivals=(30.0,) * 120 + tuple(fall.tolist()) + (10.0,) * 18))
    assert fallen.ahead == fallen.steady
    jumped = asked(ServiceLoad(age=2.0, arrivals=(30.0,) * 120 + tuple(fall.tolist()) + (4.0,) * 9 + (12.0,) * 9))
    assert jumped.ahead == jumped.steady, "a jump that is over rises no more"


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_arrivals_is_no_rise(seed: int) -> None:
    """+-10 % each half-minute, and Poisson."""
    random = np.random.default_rng(seed)
    steady = 14.0 * np.repeat(random.uniform(0.9, 1.1, 60), 3)
    noisy = asked(ServiceLoad(age=2.0, arrivals=tuple((random.poisson(10 * steady) / 10).tolist())))
    assert noisy.ahead < 1.1 * noisy.steady


@pytest.mark.parametrize("ago", [35.0, 65.0])
def test_a_clear_fall_ends_the_window_but_not_one_that_was_given(ago: float) -> None:
    """35 s ago the half-minute before the last one was still a busy one."""
    fell = ServiceLoad(age=2.0, arrivals=(10.0,) * 174 + (2.0,) * 6)
    over, given = asked(fell, ago=ago), asked(fell, ago=ago, scaling=Scaling(min=1, max=99, stabilization=90.0))
    noise = asked(ServiceLoad(age=2.0, arrivals=(10.0,) * 174 + (8.5,) * 6), ago=ago)
    assert over.peak is not None and given.peak is not None and noise.peak is not None
    assert over.peak < 0.5 * given.peak
    assert noise.peak > 0.7 * given.peak


def readings(running: list[int], serving: list[int], tokens: float = 9000.0) -> list[Sample]:
    """Return readings 5 s apart, the last one of now."""
    count = len(running)
    return [
        Sample(NOW - 5.0 * (count - 1 - n), replicas, replicas, EngineLoad(running=inside, tokens=tokens))
        for n, (inside, replicas) in enumerate(zip(running, serving, strict=True))
    ]


def test_what_makes_up_for_a_shortage_is_no_need() -> None:
    """10 requests a second of 300 tokens arrive: 3,000 tokens a second. 9,000 are generated, and 20 requests a second
    more end than begin; with as many inside as ever it is answers that got longer, and a need."""
    usual = readings([300] * 354, [8] * 354, 3000.0)
    past = [replace(one, time=one.time - 30.0) for one in usual]
    load = ServiceLoad(age=0.0, arrivals=(10.0,) * 180)
    falling = readings([700, 600, 500, 400, 300, 200], [8] * 6)
    level = readings([700] * 6, [8] * 6)
    emptied = flow(load, falling, [*past, *falling], 60.0)
    longer = flow(load, level, [*past, *level], 60.0)
    assert emptied.tokens == pytest.approx(3000, rel=0.15)
    assert longer.tokens == pytest.approx(9000)


def test_a_replica_that_is_removed_takes_its_share_along() -> None:
    """From 8 to 4 replicas with 50 requests each: none of them has ended."""
    removed = readings([400, 400, 400, 200, 200, 200], [8, 8, 8, 4, 4, 4])
    past = readings([400] * 300, [8] * 300)
    measured = flow(ServiceLoad(age=0.0, arrivals=(10.0,) * 180), removed, past, 60.0)
    assert measured.tokens == pytest.approx(9000), "nothing is taken off"


@pytest.mark.parametrize("count", [120, 122, 125, 126])
@pytest.mark.parametrize("counted", [30, 180])
def test_tokens_of_a_request_are_of_the_time_that_readings_and_arrivals_cover(count: int, counted: int) -> None:
    """10 requests a second of 300 tokens, read for 10 minutes: in the midst of a half-minute, and when the gateway has
    counted arrivals for 5 of them only."""
    past = readings([300] * count, [8] * count, 3000.0)
    measured = flow(ServiceLoad(age=2.0, arrivals=(10.0,) * counted), past[-6:], past, 60.0)
    assert measured.each == pytest.approx(300, rel=0.03)


def test_noise_of_ten_percent_flaps_nothing() -> None:
    """The trace on which 7 -> 6 -> 7 came of a throughput that was guessed from too narrow a range of concurrencies, and
    7 -> 10 -> 8 of a new replica's late first tokens."""
    engine, lengths = profile.load("h100x4-llama-70b"), synthetic.Lengths(prompt=1500, output=700)
    trace = synthetic.build("noise", 8 * sustainable(engine, *lengths.means), 1, NOISE_HOURS, lengths)
    scaler = Ours(Scaling(min=1, max=16, target=Targets(ttft=2.0)))
    outcome = Simulation(Setting(engine, Bounds(1, 16), 7, seed=1), scaler, trace.arrivals, trace.seconds).run()
    meanwhile = [event for event in outcome.events if event.time < trace.seconds]
    assert flaps(outcome.events) == 0
    assert len(meanwhile) <= 2, "one replica less once a replica's throughput is known, and at most one more"
