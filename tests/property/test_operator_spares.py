"""Protects warm spares in virtual time: awake exactly while replicas are missing, never asleep with a gate that is open,
never more than asked for, only the stable's; and whatever happened, in the end all of them sleep again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.virtual.spares import SpareCluster

from pagefleet_operator.domain.scaling.spares import MIN_AWAKE_SECONDS, PROPAGATION_SECONDS
from pagefleet_operator.domain.status.status import Phase

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("scale"), st.integers(0, 5)),
        st.tuples(st.just("spares"), st.integers(0, 3)),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("crash"), st.integers(0, 3)),
        st.tuples(st.just("mute"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.integers(1, 4)),
        st.tuples(st.just("abort"), st.just(0)),
        st.tuples(st.just("clock"), st.sampled_from([-3600, 3600])),
        st.tuples(st.just("invalid"), st.booleans()),
    ),
    max_size=12,
)


def happen(cluster: SpareCluster, event: str, value: int) -> None:
    scaling = cluster.spec["scaling"]
    stable = cluster.status.stable
    spares = cluster.spares.get(stable) or []
    match event:
        case "scale":
            cluster.scale(value, scaling["warmSpares"])
        case "spares":
            cluster.scale(scaling["min"] if isinstance(scaling["min"], int) else 1, value)
        case "lose":
            cluster.lose(stable, value)
        case "crash" if spares:
            spare = spares[value % len(spares)]
            spare.asleep, spare.loaded_at = False, cluster.real + 15
        case "mute" if spares:
            spare = spares[value % len(spares)]
            spare.answers = not spare.answers
        case "edit":
            cluster.edit(value)
        case "abort":
            cluster.act("abort")
        case "clock":
            cluster.now += value
        case "invalid":
            cluster.scale(1, scaling["warmSpares"])
            if value:
                cluster.spec["scaling"]["min"] = "many"
        case _:
            pass


def check(cluster: SpareCluster) -> None:
    """One decision on what there is now, and what must hold of it."""
    cluster.wait()
    observation = cluster.observe()
    before = {spare.name: replace(spare) for spares in cluster.spares.values() for spare in spares}
    cluster.decided(observation)
    plan = cluster.plan
    assert plan is not None
    stable = cluster.status.stable
    stable_reading = observation.revisions.get(stable)
    names = {spare.pod.name for spare in stable_reading.spares} if stable_reading else set()
    assert {order.pod for order in plan.spares} <= names, "only the stable's spares are told anything"
    desired = next((r.desired for r in cluster.status.revisions if r.hash == stable), 0)
    missing = max(0, desired - (stable_reading.own_ready if stable_reading else 0))
    for order in plan.spares:
        spare = before[order.pod]
        if order.asleep:
            assert not spare.opened, "asleep behind an open gate"
            clock = cluster.now - cluster.real
            assert spare.since is None or not 0 <= cluster.now - (spare.since + clock) < PROPAGATION_SECONDS
    opened = [order for order in plan.spares if order.opened]
    assert len(opened) <= missing
    stays = not any(gone.uid == f"uid-{stable}" for gone in plan.withdrawn)
    if stable_reading and stable_reading.spares and stays and not any(order.opened is False for order in plan.spares):
        usable = [s for s in stable_reading.spares if s.loaded or s.asleep is not None]
        awake = sum(1 for s in stable_reading.spares if s.opened) + len(opened)
        assert awake >= min(missing, len(usable)), "a spare that could stand in rests"
    ready = sum(reading.own_ready for reading in observation.revisions.values())
    spare_ready = sum(1 for r in observation.revisions.values() for s in r.spares if s.pod.ready)
    assert cluster.status.replicas == ready + spare_ready, "asleep is not serving"


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1000), st.integers(0, 3), EVENTS)
def test_spares_stand_in_for_what_is_missing_and_sleep_otherwise(
    seed: int, spares: int, events: list[tuple[str, int]]
) -> None:
    cluster = SpareCluster(seed, spares)
    for _ in range(30):
        check(cluster)
    for event, value in events:
        happen(cluster, event, value)
        for _ in range(value if event == "wait" else 2):
            check(cluster)
    for every in (*cluster.spares.values(),):
        for spare in every:
            spare.answers = True
    cluster.scale(2, spares)
    if cluster.status.canary:
        cluster.act("abort")
    for _ in range(60):
        check(cluster)
    if cluster.status.rollout.phase in (Phase.IDLE, Phase.ROLLED_BACK, Phase.WATCHING):
        stable = cluster.status.stable
        assert set(cluster.spares) == ({stable} if spares else set()), "spares of other revisions are left"
        assert cluster.asleep(stable) == spares
        assert (cluster.status.spares.asleep if cluster.status.spares else 0) == spares


def test_a_growing_service_is_helped_at_once_and_the_helper_sleeps_again() -> None:
    cluster = SpareCluster(1, 1)
    cluster.until(lambda s: s.spares is not None and s.spares.asleep == 1)
    stable = cluster.status.stable
    cluster.scale(3, 1)
    cluster.tick()
    assert cluster.spares[stable][0].opened
    began = cluster.real
    cluster.until(lambda s: s.spares is not None and s.spares.awake == 1)
    assert cluster.real - began <= 8, "a wake, not a start"
    cluster.until(lambda s: s.spares is not None and s.spares.asleep == 1)
    assert cluster.real - began >= MIN_AWAKE_SECONDS
    kinds = [entry.kind for entry in cluster.status.decisions]
    assert kinds.count("SpareWoken") == kinds.count("SpareReleased") == 1


def test_a_lost_replica_is_stood_in_for_and_the_service_never_says_it_is_down() -> None:
    cluster = SpareCluster(2, 1)
    cluster.scale(1, 1)
    cluster.until(lambda s: s.spares is not None and s.spares.asleep == 1)
    cluster.lose(cluster.status.stable, 0)
    cluster.until(lambda s: s.spares is not None and s.spares.awake == 1, ticks=6)
    assert cluster.condition("Ready").status == "True"


def test_a_service_at_zero_keeps_its_spare_and_wakes_it_first() -> None:
    cluster = SpareCluster(3, 1)
    cluster.until(lambda s: s.spares is not None and s.spares.asleep == 1)
    cluster.scale(0, 1)
    for _ in range(30):
        cluster.tick()
    stable = cluster.status.stable
    assert cluster.replicas[stable] == 0
    assert cluster.asleep(stable) == 1
    cluster.scale(1, 1)
    cluster.until(lambda s: s.replicas == 1, ticks=4)


def test_promotion_replaces_the_spares_after_the_replicas() -> None:
    cluster = SpareCluster(4, 2)
    cluster.until(lambda s: s.spares is not None and s.spares.asleep == 2)
    old = cluster.status.stable
    cluster.edit(7)
    cluster.until(lambda s: bool(s.canary))
    while cluster.status.canary:
        assert set(cluster.spares) == {old}, "a canary has none"
        cluster.tick()
        if cluster.status.canary and cluster.status.rollout.phase is not Phase.PROMOTING:
            cluster.act("promote")
    new = cluster.status.stable
    assert new != old
    cluster.until(lambda s: s.spares is not None and s.spares.revision == new and s.spares.asleep == 2)
    assert set(cluster.spares) == {new}
