"""Protects what stands around the sizing rule: schedules across changes of the clocks, step policies, the cost ceiling,
external mode, zero beside a canary, conditions that say why, what is read from gateways and engines, and metrics."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pagefleet_local.demo.stage import sample
from pagefleet_operator.cluster.readings import refusal
from pagefleet_operator.domain import capacity, curve, victims
from pagefleet_operator.domain.arrivals import service_load
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.observation import Observation, PodReading, RevisionReading, Slice, SpareReading
from pagefleet_operator.domain.plan import Plan
from pagefleet_operator.domain.policies import limited, turns
from pagefleet_operator.domain.runtimes.catalog import slots_of
from pagefleet_operator.domain.sample import Sample, ServiceLoad
from pagefleet_operator.domain.schedule import Entry, bounds
from pagefleet_operator.domain.sketch import index
from pagefleet_operator.domain.spec_scaling import Policy, Scaling, in_force
from pagefleet_operator.domain.status import ScaleStep, Status
from pagefleet_operator.signals.engine import parse, rated
from pagefleet_operator.signals.past import Past
from pagefleet_operator.signals.wakes import keys
from pagefleet_operator.signals.windows import slices
from pagefleet_operator.web.metrics import Metrics

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
        return Sample(time, 2, 2, running=2 * running, tokens=2 * running / (base + slope * running))

    varied = [entry(30 * number, running) for number, running in enumerate((4, 8, 16, 24, 30, 12))]
    found = curve.fit(curve.means(varied))
    assert found is not None
    assert found.base == pytest.approx(base, rel=1e-6)
    assert found.slope == pytest.approx(slope, rel=1e-6)
    assert found.throughput(30) == pytest.approx(30 / 0.044)
    assert curve.fit(curve.means([entry(30 * number, 10) for number in range(20)])) is None


def test_slots_are_read_where_they_can_be_set() -> None:
    assert slots_of({"engine": {"scheduling": {"maxSequences": 12}}}) == 12
    assert slots_of({"engine": {"args": ["--max-num-seqs=4"]}}) == 4
    assert slots_of({"engine": {"args": ["--kernels=auto", "--max-num-seqs", "5"]}}) == 5
    assert slots_of({"model": {}}) == 64


def test_arrivals_are_rates_in_steps_of_ten_seconds() -> None:
    pieces = [
        Slice("g", start, 2.0, "", "", 0, 0, arrivals=count)
        for start, count in ((NOW - 6, 4), (NOW - 8, 6), (NOW - 16, 5), (NOW - 4000, 9))
    ]
    pieces.append(Slice("g", NOW - 6, 2.0, "a", "s", 40, 0, {"ttft": {index(0.2): 38, index(3.0): 2}}, tokens=600))
    load = service_load(pieces, 3, NOW, True)
    assert load.held == 3
    assert load.age == 2.0
    assert load.arrivals[-2:] == (0.5, 1.0)
    assert sum(load.arrivals) == 1.5
    assert load.tokens == 10.0
    assert load.ttft == pytest.approx(0.2, rel=0.03)
    assert math.isinf(service_load(pieces, 3, NOW, False).age), "a gateway that did not answer may hold anything"
    old = service_load([Slice("g", NOW - 6, 2.0, "a", "s", 5, 0)], 0, NOW, True)
    assert (old.arrivals[-1], old.ttft) == (0.5, None)


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
    assert (one.waiting_tokens, one.free_pages, one.rates) == (55, 5, {})
    assert rated(two, one, 2.0).rates == {"tokens": 30.0}
    assert rated(three, two, 2.0).rates == {"tokens": 15.0}
    assert rated(two, None, 2.0).rates == {}


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


class Service:
    """One service decided again and again; pods are ready at once."""

    def __init__(self, **spec: Any) -> None:
        self.spec: dict[str, Any] = sample()["spec"]
        self.spec |= spec
        self.status, self.now = Status(), NOW
        self.load: ServiceLoad | None = ServiceLoad(2.0, arrivals=(0.0,) * 360)
        self.waiting, self.refused = 0, ""
        self.plan: Plan | None = None

    def observe(self) -> Observation:
        revisions = {}
        for record in self.status.revisions:
            pods = tuple(
                PodReading(
                    f"{record.hash}-{i}", True, False, self.now - 60, self.now - 50, waiting=self.waiting, running=0,
                    free_pages=100, total_pages=100, signals_age=1.0, tokens=0.0,
                )
                for i in range(record.desired)
            )  # fmt: skip
            revisions[record.hash] = RevisionReading(record.hash, record.desired, pods, refused=self.refused)
        return Observation("ns", "chat", "uid", 1, self.spec, self.status, revisions, (), load=self.load)

    def run(self, times: int = 1, seconds: float = 10.0) -> Plan:
        for _ in range(times):
            self.now += seconds
            self.plan = decide(self.observe(), self.now)
            self.status = self.plan.status
        assert self.plan is not None
        return self.plan

    def replicas(self) -> dict[str, int]:
        return {record.hash: record.desired for record in self.status.revisions if record.desired}

    def condition(self, kind: str) -> tuple[str, str, str]:
        return next((c.status, c.reason, c.message) for c in self.status.conditions if c.type == kind)


def test_a_service_at_zero_is_idle_not_broken_and_its_traffic_stays() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(20)
    stable = service.status.stable
    assert service.replicas() == {}
    assert [(w.revision, w.weight) for w in service.status.traffic] == [(stable, 100)]
    assert service.condition("Ready")[:2] == ("True", "Idle")
    assert service.condition("Scaling")[:2] == ("False", "Idle")
    assert service.condition("Degraded")[0] == "False"
    assert service.plan is not None and service.plan.asleep
    kinds = [decision.kind for decision in service.status.decisions]
    assert kinds.count("ScaledToZero") == 1
    before = service.status
    service.run(3)
    assert service.status == before, "a sleeping service is not written"
    service.load = ServiceLoad(2.0, held=1, arrivals=(0.0,) * 360)
    service.run()
    assert service.replicas() == {stable: 1}
    assert service.status.decisions[-1].kind == "Woken"
    assert not service.plan.asleep


def test_a_service_that_was_made_or_woken_just_now_is_not_idle_for_the_time_before() -> None:
    """What woke it may be answered before the slice that it is counted in is closed."""
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(10)
    assert sum(service.replicas().values()) == 1, "the windows say that nothing came for an hour; it is 100 s old"
    service.run(5)
    assert service.replicas() == {}
    service.load = ServiceLoad(2.0, held=1, arrivals=(0.0,) * 360)
    service.run()
    service.load = ServiceLoad(2.0, arrivals=(0.0,) * 360)
    service.run(10)
    assert sum(service.replicas().values()) == 1
    service.run(5)
    assert service.replicas() == {}


def test_without_gateways_nothing_goes_to_sleep() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.load = None
    service.run(60)
    assert sum(service.replicas().values()) == 1


def test_a_new_revision_wakes_a_sleeping_service_and_is_judged_beside_it() -> None:
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m"})
    service.run(20)
    stable = service.status.stable
    service.spec["engine"] = {**service.spec["engine"], "args": ["--max-num-seqs=4"]}
    service.run(2)
    assert service.status.canary
    assert service.replicas() == {stable: 1, service.status.canary: 1}
    service.run(60)
    assert service.replicas()[stable] == 1, "no sleep while a canary is judged"


def test_a_schedule_wakes_and_keeps_awake() -> None:
    entry = {"cron": "* * * * *", "duration": "1m", "min": 2}
    service = Service(scaling={"min": 0, "max": 3, "idleToZero": "2m", "schedule": [entry]})
    service.run(60)
    assert sum(service.replicas().values()) == 2
    del service.spec["scaling"]["schedule"]
    service.run(60)
    assert service.replicas() == {}
    service.spec["scaling"]["schedule"] = [entry]
    service.run(1)
    assert sum(service.replicas().values()) == 2


def test_in_mode_external_min_is_the_number_of_replicas() -> None:
    service = Service(scaling={"min": 2, "max": 9, "mode": "external"})
    service.waiting = 500
    service.run(5)
    assert sum(service.replicas().values()) == 2
    service.spec["scaling"]["min"] = 7
    service.run(1)
    assert sum(service.replicas().values()) == 7
    assert "spec.scaling.min is 7" in service.status.decisions[-1].message
    service.spec["scaling"]["min"] = 0
    service.run(1)
    assert service.replicas() == {}
    assert service.condition("Ready")[:2] == ("True", "Idle")


def test_the_cost_ceiling_caps_and_says_so() -> None:
    cost = {"perAcceleratorHour": 2.5, "ceilingPerHour": 8.0}
    resources = {"accelerator": {"name": "nvidia.com/gpu", "count": 1}, "cpu": "1", "memory": "4Gi"}
    service = Service(scaling={"min": 1, "max": 9}, cost=cost, resources=resources)
    service.waiting = 500
    service.run(10)
    assert sum(service.replicas().values()) == 3, "3 x 2.50 are within 8.00 an hour"
    assert service.condition("Scaling")[1] == "CostCeiling"
    assert "spec.cost.ceilingPerHour allows 3" in service.condition("Scaling")[2]
    service.spec["cost"] = {"perAcceleratorHour": 2.5}
    service.run(10)
    assert sum(service.replicas().values()) == 9
    assert service.condition("Scaling")[1] == "AtMaximum"


def test_a_refusal_is_a_condition_and_stops_the_growth() -> None:
    service = Service(scaling={"min": 1, "max": 9})
    service.run(2)
    service.waiting, service.refused = 500, "exceeded quota: gpus"
    service.run(10)
    assert sum(service.replicas().values()) == 1
    assert service.condition("Scaling")[1:] == (
        "Refused", "the load needs more replicas; exceeded quota: gpus")  # fmt: skip


def test_a_canarys_load_is_its_share_of_what_arrives() -> None:
    load = ServiceLoad(2.0, held=10, arrivals=(8.0, 4.0))
    part = capacity._part(load, 0.25)
    assert part is not None
    assert (part.held, part.arrivals) == (3, (2.0, 1.0))
    assert capacity._part(None, 0.25) is None


def test_metrics_tell_need_and_cost_and_go_with_the_service() -> None:
    resources = {"accelerator": {"name": "nvidia.com/gpu", "count": 2}, "cpu": "1", "memory": "4Gi"}
    service = Service(scaling={"min": 1, "max": 3}, cost={"perAcceleratorHour": 1.5}, resources=resources)
    plan = service.run(3)
    metrics = Metrics()
    metrics.load.planned(service.observe(), plan)
    text = metrics.text().decode()
    assert 'pagefleet_cost_per_hour{namespace="ns",service="chat"} 3.0' in text
    assert f'pagefleet_replicas_needed{{namespace="ns",revision="{service.status.stable}",service="chat"}} 0.0' in text
    assert 'pagefleet_arrivals_per_second{namespace="ns",service="chat"} 0.0' in text
    assert "pagefleet_cost_per_1k_tokens{" not in text, "nothing was generated: no price of it"
    metrics.forget("ns", "chat")
    assert 'service="chat"' not in metrics.text().decode()


def test_sleeping_spares_cost_and_do_not_serve_and_tokens_have_a_price() -> None:
    service = Service(scaling={"min": 1, "max": 3, "warmSpares": 2}, cost={"perAcceleratorHour": 3.6})
    plan = service.run(3)
    seen = service.observe()
    stable, found = service.status.stable, seen.revisions[service.status.stable]
    assert found.pods[0].ready
    pods = (replace(found.pods[0], tokens=100.0), *found.pods[1:])
    spares = tuple(
        SpareReading(
            PodReading(f"spare-{n}", awake, False, NOW, NOW if awake else None), asleep=not awake, loaded=awake
        )
        for n, awake in enumerate((False, True))
    )
    spares += (SpareReading(PodReading("spare-loading", False, False, NOW, None)),)
    metrics = Metrics()
    metrics.load.planned(replace(seen, revisions={stable: replace(found, pods=pods)}), plan)
    assert 'pagefleet_cost_per_1k_tokens{namespace="ns",service="chat"} 0.01' in metrics.text().decode(), (
        "3.6 / 360,000"
    )
    metrics.load.planned(replace(seen, revisions={stable: replace(found, spares=spares)}), plan)
    text = metrics.text().decode()
    assert 'pagefleet_cost_per_hour{namespace="ns",service="chat"} 10.8' in text, "a replica, a sleeper, one awake"
    assert 'pagefleet_spares{namespace="ns",service="chat"} 2.0' in text
    assert 'pagefleet_spares_awake{namespace="ns",service="chat"} 1.0' in text
    assert replace(found, spares=spares).ready == found.ready + 1


def test_min_is_never_above_a_scheduled_max() -> None:
    scaling = Scaling(4, 8, schedule=(Entry("* * * * *", "UTC", 60.0, max=2),))
    allowed = in_force(scaling, NOW)
    assert (allowed.min, allowed.max) == (2, 2)


def test_the_emptiest_then_the_coldest_pod_goes_first() -> None:
    def pod(name: str, used: int, cached: int, **more: Any) -> PodReading:
        base = PodReading(name, True, False, NOW, NOW, free_pages=1000 - used, total_pages=1000, cached_pages=cached)
        return replace(base, **more)

    pods = (
        pod("busy", 30, 0), pod("warm", 3, 500), pod("cold", 3, 20), pod("empty", 0, 900), pod("new", 0, 0, ready=False),
        pod("gone", 0, 0, terminating=True), pod("deaf", 0, 0, free_pages=None),
    )  # fmt: skip
    found = {"a": RevisionReading("a", 6, pods), "b": RevisionReading("b", 1, (pod("other", 1, 1),))}
    told = victims.costs(found, {"a": 5, "b": 1})
    assert sorted(told, key=lambda name: told[name]) == ["new", "empty", "cold", "warm", "busy", "deaf"]
    assert all(0 <= value < 2**31 for value in told.values())
    assert victims.costs(found, {"a": 6, "b": 2}) == {}, "nothing shrinks"
    assert victims.costs(found, {"b": 1}) == {}, "all of them go"
