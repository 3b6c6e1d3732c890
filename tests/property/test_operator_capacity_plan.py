"""Protects what is said of a capacity plan from chance: the interval of the throughput holds the truth for every replica whose steps grow
with its batch, a plan that is right is never called wrong however the load moves, one that is wrong by far is never called right, and a
number that stays does not make its finding come and go."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual.planned import PAGE, Service, load

from pagefleet_operator.domain.capacity_plan import estimates, report
from pagefleet_operator.domain.capacity_plan.consequence import consequence
from pagefleet_operator.domain.capacity_plan.estimates import Estimate
from pagefleet_operator.domain.capacity_plan.record import LOOK_SECONDS, Subject, finding, record
from pagefleet_operator.domain.spec.capacity_plan import Assumption, CapacityPlan
from pagefleet_operator.domain.status.observation import RevisionReading
from pagefleet_operator.domain.status.records.capacity_plan import CapacityPlanRecord, Finding
from pagefleet_operator.domain.status.sample import Sample

BEGIN = 1_700_000_010.0
EXAMPLES = int(os.environ.get("PAGEFLEET_SEEDS", "40"))
OFF = (Finding.ABOVE, Finding.BELOW)
replicas = st.builds(
    Service,
    base=st.floats(0.001, 0.1),
    slope=st.floats(0.0, 0.01),
    held=st.floats(100, 4000),
    output=st.floats(20, 400),
    replicas=st.integers(1, 5),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 1000),
)


@st.composite
def loads(draw: st.DrawFn) -> Callable[[float], float]:
    """Running requests of a replica by the time: a wave, steps, or an idle time between."""
    middle, swing, period = draw(st.floats(1, 80)), draw(st.floats(0, 0.9)), draw(st.floats(200, 7200))
    idle = draw(st.floats(0, 0.5))
    return lambda time: 0 if (time % 3600) / 3600 < idle else middle * (1 + swing * math.sin(time / period))


@given(service=replicas, running=loads(), concurrency=st.floats(2, 100))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_interval_of_the_throughput_holds_the_truth(
    service: Service, running: Callable[[float], float], concurrency: float
) -> None:
    """To within what rounding of running requests and three standard errors leave."""
    found = estimates.throughput_at(service.samples(BEGIN, 1800, running), concurrency)
    if found is not None:
        true = service.throughput(concurrency)
        assert found.low <= true * 1.03
        assert found.high >= true * 0.97
        assert found.low <= found.nearest(true) <= found.high


def days(
    plan: CapacityPlan, service: Service, running: Callable[[float], float], looks: int = 24
) -> list[CapacityPlanRecord]:
    """A look every five minutes at the half hour before it."""
    before: CapacityPlanRecord | None = None
    seen: list[CapacityPlanRecord] = []
    past: list[Sample] = service.samples(BEGIN, 1800, running)
    for number in range(looks):
        now = BEGIN + number * LOOK_SECONDS
        if number:
            past = [*past, *service.samples(now, LOOK_SECONDS - 5, running)][-360:]
        subject = Subject(RevisionReading("a", service.replicas, history=tuple(past)), 0.0, PAGE)
        before = record(plan, [subject], load({"a": service.started(past)}), before, now + 1)
        assert before is not None
        seen.append(before)
    return seen


def planned(service: Service, concurrency: float, factor: float) -> CapacityPlan:
    """A plan whose numbers are `factor` times the true ones."""
    numbers = {
        Assumption.THROUGHPUT: service.throughput(concurrency) * factor,
        Assumption.KV_TOKENS: service.held * factor,
    }
    return CapacityPlan(0.15, numbers, 4, concurrency)


@given(service=replicas, running=loads(), concurrency=st.floats(2, 100))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_right_plan_is_never_called_wrong(
    service: Service, running: Callable[[float], float], concurrency: float
) -> None:
    for made in days(planned(service, concurrency, 1.0), service, running):
        assert not [one for one in made.assumptions if one.finding in OFF], made


@given(service=replicas, running=loads(), concurrency=st.floats(2, 100), factor=st.sampled_from((0.6, 0.75, 1.35, 2.0)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_plan_that_is_wrong_by_far_is_never_called_right_and_turns_once(
    service: Service, running: Callable[[float], float], concurrency: float, factor: float
) -> None:
    plan = planned(service, concurrency, factor)
    turns: dict[str, list[Finding]] = {}
    for made in days(plan, service, running):
        for one in made.assumptions:
            states = turns.setdefault(one.name, [Finding.UNKNOWN])
            if states[-1] is not one.finding:
                states.append(one.finding)
        (condition,) = report.conditions(plan, made, "", 1.0)
        assert len(condition[3]) < 2000
    wrong = Finding.ABOVE if factor < 1 else Finding.BELOW
    assert all(states in ([Finding.UNKNOWN], [Finding.UNKNOWN, wrong]) for states in turns.values()), turns


@given(
    low=st.floats(0, 1e6),
    width=st.floats(0, 1e6),
    number=st.floats(0.01, 1e6),
    tolerance=st.floats(0.001, 0.99),
    one_sided=st.booleans(),
)
def test_the_same_interval_changes_a_finding_once_at_most(
    low: float, width: float, number: float, tolerance: float, one_sided: bool
) -> None:
    estimate, before = Estimate(low, low + width), Finding.UNKNOWN
    states = [before]
    for _ in range(4):
        before = finding(estimate, number, tolerance, before, one_sided=one_sided) or before
        states.append(before)
    assert len(set(states[1:])) == 1


numbers = st.floats(0.01, 1e9)


@given(
    planned=st.dictionaries(st.sampled_from(Assumption), numbers, min_size=1),
    measured=st.dictionaries(st.sampled_from(Assumption), st.floats(0, 1e9)),
    count=st.none() | st.integers(1, 1000),
    concurrency=st.none() | st.floats(1, 1e5),
    shared=st.integers(0, 10_000),
    peak=st.none() | st.floats(0.01, 1e9),
)
def test_a_consequence_is_total_and_needs_no_change_where_nothing_is_off(
    planned: dict[Assumption, float],
    measured: dict[Assumption, float],
    count: int | None,
    concurrency: float | None,
    shared: int,
    peak: float | None,
) -> None:
    plan = CapacityPlan(0.15, planned, count, concurrency, shared, peak)
    about = {name: value for name, value in measured.items() if name in planned}
    found, same = consequence(plan, about), consequence(plan, {})
    assert found is None or found.needed >= 1
    if same is not None and count is None:
        assert same.needed == same.planned
    if found is not None and Assumption.THROUGHPUT in planned and Assumption.THROUGHPUT not in about:
        slower = consequence(plan, {**about, Assumption.THROUGHPUT: planned[Assumption.THROUGHPUT] / 2})
        assert slower is not None
        assert slower.needed >= found.needed, "a slower replica never needs fewer of them"
