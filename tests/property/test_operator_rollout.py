"""Protects the rollout automaton on random histories in virtual time, with every kind of step, actions, alerts, missing
data and a jumping clock: the invariants of tests/support/invariants.py, no pass without data, no weight on a revision that never
had a ready pod, no step early, and that deciding twice on the same changes nothing. Rows 13, 16, 18 and 20 of the
reliability table. PAGEFLEET_ROLLOUT_TRACES sets how many histories are played (100,000 in the nightly run)."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import invariants
from support.sample_service import sample
from support.virtual.cluster import Cluster

from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.status.observation import GateReading, LoadTestReading, Observation
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import AlertRecord, Phase

TRACES = int(os.environ.get("PAGEFLEET_ROLLOUT_TRACES", "100"))
JUMPS = max(20, TRACES // 10)  # histories with a jumping clock, of which the table asks a tenth
STEPS: tuple[dict[str, Any], ...] = (
    {"pause": {}},
    {"pause": {"duration": "10s"}},
    {"mirror": "20%", "hold": "10s"},
    {"loadTest": {"timeout": "40s"}},
    {"weight": 10, "hold": "10s"},
    {"weight": 50, "hold": "20s", "minRequests": 100},
    {"weight": 100},
)
ROLLOUTS = st.fixed_dictionaries(
    {
        "steps": st.lists(st.sampled_from(range(len(STEPS))), unique=True, max_size=4).map(
            lambda chosen: [STEPS[index] for index in sorted(chosen)]
        ),
        "afterPromotion": st.sampled_from([{}, {"watch": "60s"}, {"watch": "60s", "keepPrevious": "60s"}]),
        "onAlert": st.sampled_from(["rollback", "pause"]),
        "freePages": st.booleans(),
        "gate": st.booleans(),
        "source": st.sampled_from(["Gateway", "Engine", "Prometheus"]),
    }
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "wait", "wait", "edit", "edit", "back", "break", "alert", "resolve", "blind", "see", "busy", "deaf",
             "jump", "promote", "pause", "resume", "abort", "retry", "undo", "skip", "tested", "full", "gate", "lost"]
        ),
        st.integers(0, 3),
    ),
    max_size=14,
)  # fmt: skip


def configure(cluster: Cluster, chosen: dict[str, Any]) -> None:
    rollout = cluster.spec["rollout"]
    rollout["steps"] = chosen["steps"]
    rollout["afterPromotion"] = chosen["afterPromotion"]
    rollout["alerts"]["onAlert"] = chosen["onAlert"]
    for entry in (*rollout["guard"]["latency"], rollout["guard"]["errors"]):
        entry["source"] = chosen["source"]
    if chosen["freePages"]:
        rollout["guard"]["freePages"] = {"min": "10%", "for": "10s"}
    if chosen["gate"]:
        rollout["guard"]["promql"] = [{"name": "gate", "query": "up", "max": 1}]


def happen(cluster: Cluster, event: str, number: int) -> None:
    match event:
        case "edit":
            cluster.edit(number + 1)
        case "back":
            cluster.spec = {**copy.deepcopy(cluster.spec), "engine": sample()["spec"]["engine"]}
            cluster.generation += 1
        case "break":
            cluster.spec = copy.deepcopy(cluster.spec)
            cluster.spec["scaling"]["min"] = 9 if cluster.spec["scaling"]["min"] == 1 else 1
            cluster.generation += 1
        case "alert":
            about = (cluster.status.canary, cluster.status.stable)[number % 2]
            alert = AlertRecord(f"f{cluster.now}", "Bad", cluster.now, about, cluster.now, {"severity": "page"})
            cluster.status = replace(cluster.status, alerts=(alert,))
        case "resolve":
            resolved = tuple(replace(alert, resolved=True) for alert in cluster.status.alerts)
            cluster.status = replace(cluster.status, alerts=resolved)
        case "blind":
            cluster.slices, cluster.engine = (None, cluster.engine) if number % 2 else (cluster.slices, None)
        case "see":
            cluster.slices, cluster.engine = cluster.slices or [], cluster.engine or []
        case "busy":
            cluster.waiting = number * 10
        case "deaf":
            cluster.waiting = None
        case "jump":
            cluster.now += (-86400.0, -3600.0, 3600.0, 86400.0)[number]
        case "tested":
            result = {"requests": 10, "errors": 0, "ttft": {"300": 10}}
            cluster.load_test = (None, LoadTestReading(result), LoadTestReading(failure="no"), None)[number]
        case "full":
            cluster.kv_pages_free = (100, 5)[number % 2]
        case "gate":
            cluster.gates = {"gate": GateReading("gate", (0.5, 0.5, 2.0, None)[number])}
        case "lost" if cluster.pods:
            # A node dies: the pods of one revision are started anew.
            name = sorted(cluster.pods)[number % len(cluster.pods)]
            cluster.pods[name] = [cluster.real + 10 for _ in cluster.pods[name]]
        case "promote" | "pause" | "resume" | "abort" | "retry" | "skip":
            cluster.actions += 1
            cluster.action = f'{{"id": "a{cluster.actions}", "action": "{event}"}}'
        case "undo":
            hashes = [record.hash for record in cluster.status.revisions]
            target = f', "revision": "{hashes[number % len(hashes)]}"' if hashes and number else ""
            cluster.actions += 1
            cluster.action = f'{{"id": "a{cluster.actions}", "action": "undo"{target}}}'


def check(before: Observation, cluster: Cluster, plan: Plan) -> None:
    old, new = before.status, plan.status
    assert invariants.between(old, new) == []
    weights = {entry.revision for entry in new.traffic if entry.weight}
    assert weights <= cluster.was_ready, "no weight on a revision that never had a ready pod"
    assert set(plan.delete).isdisjoint({new.stable, new.canary}), "what is in use is not deleted"
    had_weight = {entry.revision for entry in old.traffic if entry.weight}
    # By the pods themselves, whatever the status says of them. Traffic that has to go somewhere may go where nothing is ready.
    if had_weight:
        new_ones = weights - had_weight - {new.stable}
        assert all(any(pod.ready for pod in before.revisions[name].pods) for name in new_ones), (
            "a first weight without a pod"
        )
    assert set(plan.delete).isdisjoint(had_weight), "pods stay until the weight has been away for a while"
    maximum = cluster.spec["scaling"]["max"]
    assert all(record.desired <= maximum for record in new.revisions if record.hash == new.stable)
    if new.stable != old.stable and old.stable and old.traffic and new.stable == old.canary:
        assert before.revisions[new.stable].ready >= before.revisions[old.stable].ready, "capacity goes first"


@settings(max_examples=TRACES)
@given(st.integers(0, 2**32), ROLLOUTS, EVENTS, st.sampled_from([1.0, 1.0, 4.0]))
def test_every_history_keeps_the_invariants(
    seed: int, chosen: dict[str, Any], events: list[tuple[str, int]], factor: float
) -> None:
    cluster = Cluster(seed)
    cluster.factor = factor
    configure(cluster, chosen)
    for event, number in [("wait", 3), *events, ("wait", 3)]:
        happen(cluster, event, number)
        for _ in range(8 if event == "wait" else 2):
            cluster.wait()
            observation = cluster.observe()
            plan = decide(observation, cluster.now)
            check(observation, cluster, plan)
            settled = plan
            for _ in range(8):
                settled, last = decide(replace(observation, status=settled.status), cluster.now), settled
                check(replace(observation, status=last.status), cluster, settled)
                if settled.status == last.status:
                    break
            assert settled.status == last.status, "deciding again on the same ends in the same"
            assert not settled.events
            cluster.apply(plan)


@settings(max_examples=JUMPS)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([-86400.0, -3600.0, 3600.0, 86400.0])), max_size=4),
)
def test_no_step_ends_early_however_the_clock_jumps(seed: int, jumps: list[tuple[int, float]]) -> None:
    """Row 13 of docs/reliability.md: in 40 s of real time each step is held for its 40 s, as counted by decisions."""
    cluster = Cluster(seed)
    cluster.spec["rollout"]["steps"] = [{"weight": 10, "hold": "40s"}, {"weight": 50, "hold": "40s"}]
    cluster.until(lambda status: bool(status.traffic))
    cluster.edit(2)
    entered: dict[int, int] = {}
    for tick in range(80):
        cluster.now += sum(jump for at, jump in jumps if at == tick)
        cluster.tick()
        record = cluster.status.rollout
        if record.phase is Phase.STEP and cluster.weight() == (10, 50)[record.step]:
            entered.setdefault(record.step, tick)
        if record.phase is Phase.STEP and record.step == 1:
            assert tick - entered[0] >= 20, "the first step was held for less than 40 s"
        if cluster.status.canary == "" and 1 in entered:
            assert tick - entered[1] >= 20
            break


@settings(max_examples=max(30, TRACES // 10))
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 3))
def test_an_alert_rolls_back_once_at_any_moment(seed: int, moment: int, copies: int) -> None:
    """Row 20 of docs/reliability.md: exactly one rollback of a revision, at the next decision, however often the alert comes."""
    cluster = Cluster(seed)
    cluster.until(lambda status: bool(status.traffic))
    cluster.edit(2)
    for _ in range(moment):
        cluster.tick()
    canary = cluster.status.canary
    if not canary:
        return
    alerts = tuple(
        AlertRecord(f"f{n}", "Bad", cluster.now, canary, cluster.now, {"severity": "page"}) for n in range(copies)
    )
    cluster.status = replace(cluster.status, alerts=alerts)
    cluster.tick()
    assert cluster.weight() == 0
    for _ in range(30):
        cluster.tick()
    assert [(one.hash, one.reason) for one in cluster.status.rejected] == [(canary, "Alert")]
    assert cluster.status.rollout.phase is Phase.ROLLED_BACK


def test_a_rollout_that_waits_for_a_person_writes_nothing() -> None:
    """Row 1 of docs/reliability.md: a step without an end, and a paused one, change no byte of the status while nothing happens."""
    paused = '{"id": "a1", "action": "pause"}'
    for first, action in (({"pause": {}}, ""), ({"weight": 10, "hold": "600s"}, paused)):
        cluster = Cluster(5)
        cluster.spec["rollout"]["steps"] = [first, {"weight": 50}]
        cluster.spec["rollout"]["guard"] = {"latency": [], "deadline": "60s"}
        cluster.until(lambda status: bool(status.traffic))
        cluster.edit(2)
        for _ in range(30):
            cluster.tick()
        cluster.action = action
        cluster.tick()
        cluster.slices = None  # requests are counted
        for _ in range(10):
            cluster.tick()
        before = cluster.status
        assert before.canary
        for _ in range(60):
            cluster.tick()
            assert cluster.status == before
        cluster.slices, cluster.action = [], '{"id": "a2", "action": "resume"}'
        cluster.until(lambda status: not status.canary and status.rollout.phase is Phase.IDLE)


def test_a_good_canary_is_promoted_and_a_bad_one_is_not() -> None:
    for factor, promoted in ((1.0, True), (4.0, False)):
        cluster = Cluster(1)
        cluster.factor = factor
        cluster.until(lambda status: bool(status.traffic))
        stable = cluster.status.stable
        cluster.edit(2)
        for _ in range(250):
            cluster.tick()
        assert (cluster.status.stable != stable) is promoted
        assert not cluster.status.canary
        assert cluster.status.rollout.phase is (Phase.IDLE if promoted else Phase.ROLLED_BACK)
        if not promoted:
            rejection = cluster.status.rejected[0]
            assert rejection.reason == "LatencyRegression"
            assert rejection.verdict is not None, "the evidence is kept"
            assert set(cluster.replicas) == {stable}


def test_without_measurements_nothing_is_promoted_and_the_deadline_decides() -> None:
    """Row 18 of docs/reliability.md: held for ever, or rolled back at the deadline where that is asked for."""
    for choice, phase in (("hold", Phase.STEP), ("rollback", Phase.ROLLED_BACK), ("promote", Phase.IDLE)):
        cluster = Cluster(3)
        cluster.spec["rollout"]["guard"].update(onInconclusive=choice, deadline="60s")
        cluster.until(lambda status: bool(status.traffic))
        cluster.slices, first = None, cluster.status.stable
        cluster.edit(2)
        for _ in range(150):
            cluster.tick()
        assert cluster.status.rollout.phase is phase
        if choice == "promote":
            assert cluster.status.stable != first, "promoted, because that is asked for"
            continue
        assert cluster.condition("Analysed").status == "Unknown"
