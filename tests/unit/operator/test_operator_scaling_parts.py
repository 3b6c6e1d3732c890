"""Protects what sizing is made of: schedules across changes of the clocks, step policies, the memory of flaps, the curve
of an engine, and what is read from gateways and engines."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from zoneinfo import ZoneInfo

import pytest

from pagefleet_contract.engine_metrics import NUMBERS
from pagefleet_contract.sketch import bucket_of
from pagefleet_engine.api.observability.metrics import Metrics as EnginePage
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.runtimes.catalog import slots_of
from pagefleet_operator.domain.scaling import capacity, throughput
from pagefleet_operator.domain.scaling.deletion_cost import cost
from pagefleet_operator.domain.scaling.load_sums import LoadSums
from pagefleet_operator.domain.scaling.policies import limited, turns
from pagefleet_operator.domain.scaling.signals import SIGNALS
from pagefleet_operator.domain.spec.scaling import Policy, Scaling
from pagefleet_operator.domain.spec.schedule import Entry, bounds
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import GAUGES, RATES, EngineLoad
from pagefleet_operator.domain.status.gateway_slices import slices
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading, Slice
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScaleStep
from pagefleet_operator.kube.readings import refusal
from pagefleet_operator.metrics.engine_readings import parse, rated
from pagefleet_operator.metrics.history import Past
from pagefleet_operator.metrics.wake_ups import keys

NOW = 1_800_000_000.0


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-03-27T07:59:59", 1),  # a Friday
        ("2026-03-27T08:00:00", 4),
        ("2026-03-27T17:59:59", 4),
        ("2026-03-27T18:00:00", 1),
        ("2026-03-28T09:00:00", 1),  # a Saturday
        ("2026-03-30T08:00:30", 4),  # after the change to summer time: 8 o'clock there, not 7 or 9
        ("2026-10-26T07:59:00", 1),
        ("2026-10-26T08:01:00", 4),
    ],
)
def test_a_schedule_keeps_its_time_zone(moment: str, expected: int) -> None:
    entry = Entry("0 8 * * 1-5", "Europe/Berlin", 10 * 3600, min=4)
    assert bounds((entry,), 1, 8, at(moment))[0] == expected


def test_an_entry_stays_in_force_through_an_hour_that_the_clocks_repeat() -> None:
    """From 2:30 summer time on 25 October 2026 for ten hours; half an hour later it is 2:00 again."""
    night = Entry("30 2 * * *", "Europe/Berlin", 10 * 3600, min=4)
    begin = at("2026-10-25T02:30:00")
    asked = [minute for minute in range(-60, 720) if bounds((night,), 1, 8, begin + 60 * minute)[0] == 4]
    assert asked == list(range(600))
    often = Entry("*/20 * * * *", "Europe/Berlin", 60, min=4)
    asked = [minute for minute in range(-30, 60) if bounds((often,), 1, 8, begin + 60 * minute)[0] == 4]
    assert asked == [-30, -10, 10, 30, 50]


def test_of_several_entries_the_highest_min_and_the_lowest_max_count_and_max_wins() -> None:
    always = [Entry("* * * * *", "UTC", 60, min=least, max=most) for least, most in ((3, None), (5, 9), (None, 4))]
    assert bounds(tuple(always), 1, 10, NOW) == (4, 4, True)
    assert bounds(tuple(always[:2]), 1, 10, NOW) == (5, 9, True)
    assert bounds((), 0, 10, NOW) == (0, 10, False)


def test_step_policies_count_what_changed_within_their_period() -> None:
    scaling = Scaling(
        1, 100,
        up_policies=(Policy(60, pods=4), Policy(60, percent=1.0)),
        down_policies=(Policy(60, pods=1), Policy(300, percent=0.1)),
    )  # fmt: skip
    assert limited(50, 10, (), scaling, NOW) == 20, "the policy that allows most: +100 %"
    assert limited(50, 2, (), scaling, NOW) == 6, "+4"
    steps = (ScaleStep(NOW - 30, 4),)
    assert limited(50, 6, steps, scaling, NOW) == 6, "2 -> 6 within the minute already"
    assert limited(50, 6, steps, scaling, NOW + 31) == 12
    assert limited(1, 20, (), scaling, NOW) == 18
    assert limited(1, 18, (ScaleStep(NOW - 100, -2),), scaling, NOW) == 17, "-1 in this minute; -10 % are used up"
    assert limited(7, 5, (), replace(scaling, up_policies=()), NOW) == 7


def test_only_small_decreases_that_were_taken_back_soon_are_flaps() -> None:
    steps = (ScaleStep(0, -1), ScaleStep(300, 1), ScaleStep(400, -1), ScaleStep(1200, 1), ScaleStep(1300, -1))
    assert turns(steps, 10, 1400) == 1, "the second came back after more than ten minutes"
    assert turns((ScaleStep(0, -1), ScaleStep(300, 6)), 10, 400) == 0, "a burst is none"
    assert turns(steps, 10, 5000) == 0


def test_the_curve_is_found_again_and_not_where_nothing_tells_it() -> None:
    base, slope = 0.02, 0.0008

    def entry(time: float, running: int) -> Sample:
        return Sample(time, 2, 2, EngineLoad(running=2 * running, tokens=2 * running / (base + slope * running)))

    varied = [entry(30 * number, running) for number, running in enumerate((4, 8, 16, 24, 30, 12, 20, 6))]
    found = throughput.fit(throughput.means(varied), 32)
    assert found is not None
    assert found.base == pytest.approx(base, rel=1e-6)
    assert found.slope == pytest.approx(slope, rel=1e-6)
    assert found.throughput(30) == pytest.approx(30 / 0.044)
    assert found.shown
    level = throughput.means([entry(30 * number, 10) for number in range(20)])
    assumed = throughput.fit(level, 32)
    assert assumed is not None
    assert not assumed.shown
    assert assumed.throughput(10) == pytest.approx(10 / 0.028), "what was seen"
    assert assumed.base + 32 * assumed.slope == pytest.approx(2 * assumed.base), "a full step takes twice as long"
    assert throughput.fit(level[:7], 32) is None, "too few half-minutes"


def test_every_target_has_its_signal_and_every_load_its_name_on_a_metrics_page() -> None:
    targets = {entry.metadata["name"] for entry in fields(Targets)}
    assert targets <= {signal.name for signal in SIGNALS}
    assert {*GAUGES.values(), *RATES.values()} <= set(NUMBERS)
    assert {*GAUGES, *RATES, "kv_pages_total", "kv_pages_free"} == {entry.name for entry in fields(EngineLoad)}


def test_slots_are_read_where_they_can_be_set() -> None:
    assert slots_of(revision_spec({"engine": {"scheduling": {"maxSequences": 12}}})) == 12
    assert slots_of(revision_spec({"engine": {"args": ["--max-num-seqs=4"]}})) == 4
    assert slots_of(revision_spec({"engine": {"args": ["--kernels=auto", "--max-num-seqs", "5"]}})) == 5
    assert slots_of(revision_spec({"model": {}})) == 64


def load_of(pieces: Sequence[Slice], held: int = 0, whole: bool = True) -> ServiceLoad:
    sums = LoadSums()
    sums.add(pieces, NOW)
    return sums.load(held, NOW, whole)


def test_arrivals_are_rates_in_steps_of_ten_seconds() -> None:
    pieces = [
        Slice("g", start, 2.0, "", "", 0, 0, arrivals=count)
        for start, count in ((NOW - 6, 4), (NOW - 8, 6), (NOW - 16, 5), (NOW - 4000, 9))
    ]
    pieces.append(
        Slice("g", NOW - 6, 2.0, "a", "s", 40, 0, {"ttft": {bucket_of(0.2): 38, bucket_of(3.0): 2}}, tokens=600)
    )
    load = load_of(pieces, 3)
    assert load.held == 3
    assert load.age == 2.0
    assert load.arrivals[-2:] == (0.5, 1.0)
    assert sum(load.arrivals) == 1.5
    assert load.tokens == 10.0
    assert load.ttft == pytest.approx(0.2, rel=0.03)
    assert math.isinf(load_of(pieces, 3, False).age), "a gateway that did not answer may hold anything"
    old = load_of([Slice("g", NOW - 6, 2.0, "a", "s", 5, 0)])
    assert (old.arrivals[-1], old.ttft) == (0.5, None)


def test_the_load_of_a_service_is_the_same_however_its_slices_come() -> None:
    """All of an hour at once, or each gateway's when it answers, also late; each reading forgets what is too old."""
    counts = random.Random(1)
    pieces = []
    for number in range(2100):
        start = NOW - 4200 + 2 * number - 4
        pieces.append(Slice("g", start, 2.0, "", "", 0, 0, arrivals=counts.randrange(7)))
        for gateway, asked in (("g", 2), ("older", 4)):
            ended, ages = {counts.randrange(400, 500): 3}, {"ttft": {counts.randrange(400, 600): 1}}
            slow = {"ttft": {counts.randrange(500): 1}}
            pieces.append(
                Slice(
                    gateway, start, 2.0, "a", "s", asked, 0, {"ttft": ended}, tokens=9, in_flight=ages, unmeasured=slow
                )
            )
    sums = LoadSums()
    for number in range(0, 2100, 15):
        now = NOW - 4200 + 2 * number + 30
        for gateway, late in (("g", 0), ("older", 10)):
            begin, end = (NOW - 4204 + 2 * (place - late) for place in (number, number + 15))
            own = [piece for piece in pieces if piece.instance == gateway and begin <= piece.start < end]
            sums.add(own[::-1] if gateway == "older" else own, now)
        sums.load(0, now, True)
    sums.add([piece for piece in pieces if piece.instance == "older" and piece.start >= NOW - 4 - 20], NOW)
    assert sums.load(3, NOW, True) == load_of(pieces, 3)
    assert load_of(pieces[::-1]) == load_of(pieces)
    assert sums.load(3, NOW + 4000, True).arrivals == (0.0,) * 360
    sums.add([Slice("g", NOW + 99_999, 2.0, "", "", 0, 0, arrivals=7, tokens=5)], NOW + 4000)
    assert sums.load(0, NOW + 4000, True).tokens is None, "nothing that is far in the future counts"


def test_a_clock_that_was_set_back_does_not_freeze_the_arrivals() -> None:
    """For as long as the clock has to run again, the load would be the last one before, whatever comes."""
    sums = LoadSums()

    def pass_time(now: float, seconds: int, count: int) -> float:
        for _ in range(seconds // 2):
            now += 2.0
            late = {"ttft": {bucket_of(9.0 if count else 0.1): 30}}
            new = [
                Slice("g", now - 4, 2.0, "", "", 0, 0, arrivals=count),
                Slice("g", now - 4, 2.0, "a", "s", 30, 0, late),
            ]
            sums.add(new, now)
        return now

    now = pass_time(NOW, 1200, 20) - 1200.0
    assert sums.load(0, now, True).arrivals[-120:] == (10.0,) * 120, "what came before is not forgotten"
    now = pass_time(now, 300, 0)
    load = sums.load(0, now, True)
    assert load.arrivals[-30:] == (0.0,) * 30
    assert load.arrivals[-146:-34] == (10.0,) * 112
    assert load.ttft == pytest.approx(0.1, rel=0.05)
    assert sum(load.started["a"].values()) == 30 * 150


def test_requests_that_were_sent_are_counted_by_revision_for_half_an_hour() -> None:
    """In the half-minutes of the scaler's means. A gateway of an older version counts those that ended."""
    sums, place = LoadSums(), math.floor((NOW - 6) / 30)
    sums.add([Slice("g", NOW - 6, 2.0, "a", "s", 1, 0, started=4), Slice("h", NOW - 6, 2.0, "a", "t", 3, 0)], NOW)
    sums.add([Slice("g", NOW - 36, 2.0, "b", "s", 9, 0, started=0), Slice("g", NOW - 9000, 2.0, "b", "s", 9, 0)], NOW)
    sums.add([Slice("g", NOW - 36, 2.0, "a", "s", 0, 0, started=2)], NOW)
    assert sums.load(0, NOW, True).started == {"a": {place: 7, math.floor((NOW - 36) / 30): 2}}
    assert sums.load(0, NOW + 1845, True).started == {"a": {place: 7}}
    assert sums.load(0, NOW + 1900, True).started == {}


def test_slices_of_arrivals_are_read() -> None:
    document = {
        "instance": "g",
        "sliceSeconds": 2,
        "slices": [
            {"start": 10, "revision": "", "stratum": "", "arrivals": 7, "requests": 0, "errors": 0},
            {"start": 10, "revision": "a", "stratum": "s", "requests": 1, "errors": 0, "tokens": -1},
        ],
    }
    first, second = slices(document)
    assert (first.arrivals, first.revision, second.arrivals, second.tokens) == (7, "", None, None)


def test_counters_become_rates_and_a_restarted_engine_begins_anew() -> None:
    page = "\n".join(
        [
            *(f"pagefleet_{name} {value}" for name, value in (
                ("num_requests_waiting", 1), ("num_requests_running", 2), ("kv_pages", 10), ("kv_pages_free", 3),
                ("kv_pages_cached", 2), ("num_tokens_waiting", 55),
            )),
            "# TYPE pagefleet_generation_tokens_total counter",
            "pagefleet_generation_tokens_total TOKENS",
            "# TYPE pagefleet_generation_tokens_created gauge",
            "pagefleet_generation_tokens_created 1.8e9",
        ]
    ) + "\n"  # fmt: skip
    one, two, three = (parse(page.replace("TOKENS", text)) for text in ("100", "160", "30"))
    assert one is not None and two is not None and three is not None
    assert one.load == EngineLoad(2, 1, 55, kv_pages_total=10, kv_pages_free=5, kv_pages_cached=2)
    assert rated(two, one, 2.0).load == replace(one.load, tokens=30.0)
    assert rated(three, two, 2.0).load == replace(one.load, tokens=15.0)
    assert rated(two, one, 0.0).load == one.load


def test_no_engines_page_makes_a_load_that_cannot_be() -> None:
    """More free pages than there are would be less than none in use: a replica would seem to carry nothing, and the fleet would go to its
    maximum. A number that no float holds would end each decision."""
    page = "pagefleet_num_requests_waiting 0\npagefleet_num_requests_running {}\npagefleet_kv_pages 100\n"
    page += "pagefleet_kv_pages_free {}\npagefleet_kv_pages_cached 60\n"
    read = parse(page.format(2, 80))
    assert read is not None
    assert (read.load.kv_pages_free, read.load.kv_pages_used) == (100, 0)
    for number in ("1e308", "1e16", "NaN", "-1"):
        assert parse(page.format(number, 5)) is None


def test_a_pods_start_up_time_is_that_of_its_first_ready() -> None:
    past, pod = Past(), PodReading("p", True, False, NOW, NOW + 42)
    for reading in (pod, replace(pod, ready=False, ready_since=None), replace(pod, ready_since=NOW + 900)):
        seen = past.remembered(("n", "s"), {"a": RevisionReading("a", 1, (reading,))}, NOW + 1000)
        assert seen["a"].pods[0].startup == 42
    past.forget(("n", "s"))
    seen = past.remembered(("n", "s"), {"a": RevisionReading("a", 1, (replace(pod, ready_since=NOW + 9),))}, NOW + 1)
    assert seen["a"].pods[0].startup == 9
    assert seen["a"].history == ()


def test_what_gateways_hold_is_read_or_left_out() -> None:
    assert keys({"held": {"a/b": 2, "a/c": 0, "d": 1, "e/f": "x"}}) == {("a", "b")}
    assert keys([1]) == keys({"held": 3}) == set()


def test_a_quotas_refusal_has_no_pods_name() -> None:
    message = 'pods "chat-1-x7k2p" is forbidden: exceeded quota: gpus, requested: a=1, used: a=4, limited: a=4'
    failed = {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}
    assert refusal(failed) == "exceeded quota: gpus, requested: a=1, used: a=4, limited: a=4"
    assert refusal({"status": {"conditions": [{"type": "ReplicaFailure", "status": "False"}]}}) == ""


def test_the_slots_that_engines_report_come_before_the_runtimes_default() -> None:
    """An engine without --max-num-seqs has another default on each device, and an image may have one of its own."""
    page = EnginePage("m", EngineConfig("file:///m", max_num_seqs=200)).text().decode()
    read = parse(page)
    assert read is not None
    assert read.load.slots == 200
    cuda = {"resources": {"accelerator": {"name": "nvidia.com/gpu", "count": 1}}}

    def reading(*loads: EngineLoad | None) -> RevisionReading:
        pods = (PodReading(f"p{i}", True, False, 0.0, 0.0, load=load) for i, load in enumerate(loads))
        return RevisionReading("a", len(loads), tuple(pods))

    assert capacity.slots(reading(read.load, None, EngineLoad(1, 2)), cuda) == 200
    assert capacity.slots(reading(None, EngineLoad(1, 2)), cuda) == 256
    assert capacity.slots(reading(), {"model": {}}) == 64
    assert capacity.slots(reading(), None) is None


def test_of_engines_that_report_no_pages_the_one_with_the_fewest_requests_goes_first() -> None:
    """With equal costs Kubernetes would remove the newest replica, however many streams it has."""
    loads = (EngineLoad(running=9), EngineLoad(running=1, waiting=2), EngineLoad(), None)
    pods = [PodReading(f"chat-{place}", True, False, 0.0, 1.0, load=load) for place, load in enumerate(loads)]
    assert sorted(range(4), key=lambda place: cost(pods[place])) == [2, 1, 0, 3]
