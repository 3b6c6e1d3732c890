"""The simulated engine and fleet keep their books whatever comes: every request ends once, KV is never over-committed,
the same seed gives the same run, and time is what the profile says."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_simulator.fleet.engine import Engine
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.profile import Profile, Startup, StepTime
from pagefleet_simulator.fleet.request import Arrival, Ending, Request, requests
from pagefleet_simulator.fleet.view import Bounds, Decision, View
from pagefleet_simulator.scalers.hpa import Hpa, Metric
from pagefleet_simulator.simulation import Setting, Simulation

SMALL = Profile(
    name="small",
    step=StepTime(base=0.01, prefill=1e-4, decode=1e-3, kv=1e-6),
    pages=40,
    page_size=16,
    step_tokens=48,
    chunk_tokens=24,
    max_sequences=6,
    max_queued=50,
    startup=Startup(1.0, 5.0, 10.0, 0.3, 0.5),
)

CLASSES = ("interactive", "batch")  # the most important first

arrivals = st.lists(
    st.builds(
        Arrival,
        at=st.floats(0, 60),
        prompt=st.integers(1, 300),
        output=st.integers(1, 300),
        group=st.integers(-1, 2),
        shared=st.integers(0, 120),
        priority=st.sampled_from(["", *CLASSES, "unknown"]),
    ),
    min_size=1,
    max_size=60,
).map(lambda found: sorted(found, key=lambda one: one.at))


def held(engine: Engine) -> int:
    """What the engine's sequences and prefixes must be charged, counted anew."""
    prefixes = sum(tokens for tokens, _ in engine._prefixes.values())
    decoding = sum(one.held + engine.counters.steps - one.upto for one in engine.decoding)
    return prefixes + decoding + sum(one.held for one in engine.prefilling)


@settings(max_examples=150)
@given(arrivals, st.booleans())
def test_an_engine_ends_every_request_once_and_never_over_commits(trace: list[Arrival], sharing: bool) -> None:
    engine = Engine(SMALL, sharing)
    ended: list[Request] = []
    pending = [one for one in requests(trace, CLASSES) if engine.fits(one)]
    accepted = list(pending)
    steps = 0
    while pending or engine.due < math.inf:
        steps += 1
        assert steps < 100_000
        if pending and pending[0].arrival.at <= engine.due:
            request = pending.pop(0)
            ended += engine.put(request, request.arrival.at)
        else:
            ended += engine.finish()
        assert 0 <= engine.used <= SMALL.capacity
        assert engine.used == held(engine)
        assert engine.running <= SMALL.max_sequences
        assert [one.rank for one in engine.waiting] == sorted(one.rank for one in engine.waiting)
    assert sorted(map(id, ended)) == sorted(map(id, accepted))
    assert engine.contexts == 0
    assert all(one.arrival.at < one.first <= one.end for one in accepted)
    assert engine.counters.generated >= sum(one.arrival.output for one in accepted)
    assert all(one[1] == 0 for one in engine._prefixes.values())


@settings(max_examples=60)
@given(arrivals, st.integers(0, 2**20), st.sampled_from(Removal), st.integers(0, 1))
def test_a_fleet_ends_every_request_once(trace: list[Arrival], seed: int, removal: Removal, least: int) -> None:
    class Restless:
        """Changes its mind at every look, to have pods start, drain and end under load."""

        name, period = "restless", 3.0

        def __init__(self) -> None:
            self.removal = removal

        def start(self) -> int:
            return 0

        def decide(self, view: View, memory: int, bounds: Bounds) -> Decision:
            return Decision([3, 1, 4, 0, 2][memory % 5], memory + 1)

    setting = Setting(SMALL, Bounds(least, 4), initial=1, seed=seed, hold=120.0, quota=3, priorities=CLASSES)
    simulation = Simulation(setting, Restless(), trace, 60.0)
    outcome = simulation.run()
    assert outcome.served + outcome.dropped + outcome.left == outcome.requests == len(trace)
    assert all(
        (one.ending is Ending.SERVED) == (not math.isnan(one.first) and one.end > 0) for one in simulation.requests
    )
    assert outcome.left == 0
    assert outcome.accelerator_seconds <= outcome.seconds * 3 + 1e-6
    # In the end nothing is in flight, and pods that were drained are gone.
    assert all(pod.engine.in_flight == 0 for pod in simulation.pods.all)
    assert not simulation.pods.draining


@settings(max_examples=20)
@given(arrivals, st.integers(0, 2**20))
def test_the_same_seed_gives_the_same_run(trace: list[Arrival], seed: int) -> None:
    setting = Setting(SMALL, Bounds(1, 4), initial=1, seed=seed)
    first, again = (Simulation(setting, Hpa(2.0, Metric.CONCURRENCY), trace, 60.0).run() for _ in range(2))
    assert first.events == again.events
    assert first.timeline == again.timeline
    assert first.accelerator_seconds == again.accelerator_seconds
    assert (first.latencies.ttft == again.latencies.ttft).all()


@settings(max_examples=100)
@given(st.integers(1, 200), st.integers(1, 200))
def test_a_lone_request_takes_exactly_its_steps(prompt: int, output: int) -> None:
    engine = Engine(SMALL, prefix_caching=False)
    request = Request(Arrival(5.0, prompt, output))
    engine.put(request, 5.0)
    while engine.due < math.inf:
        engine.finish()
    step = SMALL.step
    chunks = [min(24, prompt - at) for at in range(0, prompt, 24)]
    first = 5.0 + sum(step.seconds(chunk, 0, 0) for chunk in chunks)
    end = first + sum(step.seconds(0, 1, prompt + index) for index in range(output - 1))
    assert math.isclose(request.first, first, rel_tol=1e-9)
    assert math.isclose(request.end, end, rel_tol=1e-9)


def test_pages_that_run_out_preempt_the_newest_and_it_ends_all_the_same() -> None:
    engine = Engine(replace(SMALL, max_sequences=4), prefix_caching=False)
    both = [Request(Arrival(0.0, 150, 250)), Request(Arrival(0.5, 100, 300))]
    for request in both:
        engine.put(request, request.arrival.at)
    while engine.due < math.inf:
        engine.finish()
    assert engine.counters.preemptions >= 1
    assert both[0].end < both[1].end


def test_the_least_important_sequence_is_preempted_and_waits_behind_the_others() -> None:
    engine = Engine(replace(SMALL, max_sequences=4), prefix_caching=False)
    batch, person = requests([Arrival(0.0, 150, 250, priority="batch"), Arrival(0.5, 100, 300)], ("", "batch"))
    for request in (batch, person):
        engine.put(request, request.arrival.at)
    while engine.due < math.inf:
        engine.finish()
    assert engine.counters.preemptions >= 1
    assert person.end < batch.end


def test_a_shared_prefix_is_computed_once() -> None:
    engine = Engine(SMALL)
    for at in (0.0, 30.0):
        engine.put(Request(Arrival(at, 100, 2, group=1, shared=80)), at)
        while engine.due < math.inf:
            engine.finish()
    assert engine.counters.prefilled == 100 + 20
    assert engine.counters.shared == 80
