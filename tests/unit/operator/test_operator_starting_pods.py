"""Protects rollouts of many pods, of which one is always starting, fails again and again, or does not answer: it silences no
source, hides none of its requests, and blocks no rollout. Among few pods each one counts."""

from __future__ import annotations

import random

import pytest
from support.rollout_turn import pods, turn_of
from support.virtual.cluster import TICK, Cluster
from support.virtual.engine_pages import Engines

from pagefleet_operator.domain.analysis.limits import free_page_share
from pagefleet_operator.domain.base.absence import tolerated_silent, tolerated_unready
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.status import Phase
from pagefleet_operator.metrics.cumulative import MAX_GAP_SECONDS
from pagefleet_operator.metrics.series import unscraped

PODS, START_SECONDS, DEAF_SECONDS = 30, 20.0, 8.0
STABLE, CANARY = ([(f"{revision}-{number}", revision) for number in range(PODS)] for revision in ("s", "c"))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(monkeypatch)


@pytest.mark.parametrize(
    ("count", "unready", "silent"), [(0, 0, 0), (1, 0, 0), (10, 0, 0), (11, 1, 0), (20, 1, 0), (21, 2, 1), (41, 4, 2)]
)
def test_few_pods_are_all_needed_and_of_many_a_small_part_is_not(count: int, unready: int, silent: int) -> None:
    assert (tolerated_unready(count), tolerated_silent(count)) == (unready, silent)


@pytest.mark.parametrize(
    ("count", "silent", "read"), [(30, 1, True), (30, 2, False), (20, 1, False), (41, 2, True), (1, 1, False)]
)
@pytest.mark.parametrize("revision", ["s", "c"])
async def test_a_source_is_silent_when_too_many_pods_of_a_revision_are(
    engines: Engines, revision: str, count: int, silent: int, read: bool
) -> None:
    asked = [(f"{name}-{number}", name) for name in ("s", "c") for number in range(count if name == revision else 60)]
    for number in range(silent):
        engines.page(f"{revision}-{number}").silent = True
    assert (await engines.read(asked) is not None) is read
    assert engines.windows.silence("ns", "chat") == ("" if read else f"pod {revision}-0 does not answer within 2 s (at "
                                                     f"http://{revision}-0:8000/metrics)")  # fmt: skip


async def test_a_pod_that_is_unready_again_and_again_hides_none_of_its_requests(engines: Engines) -> None:
    """It is unready or silent for twenty seconds of each half minute, and slow: just those requests must be seen."""
    flapping, told = CANARY[0], 0
    await engines.read([*STABLE, *CANARY])
    for tick in range(90):
        engines.now += TICK
        for name, _ in (*STABLE, *CANARY[1:]):
            engines.serve(name, 1)
        engines.serve(flapping[0], 1, factor=20.0)
        moment = tick % 15
        engines.page(flapping[0]).silent = moment >= 10
        asked = [*STABLE, *CANARY] if moment < 5 or moment >= 10 else [*STABLE, *CANARY[1:]]
        slices = await engines.read(asked)
        assert slices is not None, engines.windows.silence("ns", "chat")
        told += len(STABLE) + len(CANARY)
    engines.page(flapping[0]).silent = False
    slices = await engines.read([*STABLE, *CANARY])
    assert slices is not None
    assert sum(piece.requests for piece in slices) == told
    assert sum(piece.requests for piece in slices if piece.instance == flapping[0]) == 90


async def test_readings_of_pods_that_are_gone_are_dropped(engines: Engines) -> None:
    await engines.read([*STABLE, *CANARY])
    engines.now += MAX_GAP_SECONDS + 1
    await engines.read(STABLE)
    assert set(engines.windows._past["ns", "chat"].last) == {name for name, _ in STABLE}


def test_one_of_thirty_targets_without_a_scrape_does_not_silence_prometheus() -> None:
    newest = {("job", "10.0.0.1:8000", name): 100.0 for name, _ in CANARY[1:]}
    names = [name for name, _ in CANARY]
    assert unscraped(newest, names, 110.0, 90.0) == ""
    assert (
        unscraped(dict(list(newest.items())[1:]), names, 110.0, 90.0)
        == "it has no fresh samples of pod c-0 (none at all)"
    )


@pytest.mark.parametrize(("count", "unread", "known"), [(30, 1, True), (30, 2, False), (20, 1, False)])
def test_free_pages_are_known_although_one_pod_of_many_is_not_read(count: int, unread: int, known: bool) -> None:
    def pod(number: int) -> PodReading:
        load = None if number < unread else EngineLoad(1, 0, kv_pages_total=160, kv_pages_free=80)
        return PodReading(f"b-{number}", True, False, 0.0, 0.0, load=load, load_age=1.0)

    readings = RevisionReading("a", 1, pods(1)), RevisionReading("b", count, tuple(map(pod, range(count))))
    observation = turn_of(Phase.STEP, readings, desired={"a": 1, "b": count}, rollout={"steps": [{"weight": 50}]})[
        0
    ].observation
    assert free_page_share(observation, "b") == (0.5 if known else None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("factor", "phase"), [(1.0, Phase.IDLE), (4.0, Phase.ROLLED_BACK)])
async def test_a_rollout_ends_although_a_pod_of_the_canary_is_always_starting(
    engines: Engines, seed: int, factor: float, phase: Phase
) -> None:
    """From eleven pods on, one of the canary's is at any time starting, and does not answer for a while when it is ready."""
    cluster, chance = Cluster(seed), random.Random(seed)
    cluster.spec["scaling"] = {"min": PODS, "max": 2 * PODS}
    guard = cluster.spec["rollout"]["guard"]
    for entry in (*guard["latency"], guard["errors"]):
        entry["source"] = "Engine"
    cluster.until(lambda status: bool(status.traffic))
    for _ in range(10):
        cluster.tick()
    cluster.edit(2)
    stable, missing, deaf = cluster.status.stable, list[int](), dict[str, float]()
    for tick in range(400):
        canary = cluster.status.canary
        if tick % int(START_SECONDS / TICK) == 0 and len(cluster.pods.get(canary, ())) > 10:
            number = chance.randrange(len(cluster.pods[canary]))
            cluster.pods[canary][number] = cluster.real + START_SECONDS + TICK
            engines.page(f"{canary}-{number}").restart()
            deaf[f"{canary}-{number}"] = cluster.real + START_SECONDS + TICK + DEAF_SECONDS
        cluster.wait(engines=False)
        engines.now = cluster.now
        readings = cluster.observe().revisions
        ready = (
            [(pod.name, name) for name in (stable, canary) for pod in readings[name].pods if pod.ready]
            if canary
            else []
        )
        for name, revision in ready:
            engines.page(name).silent = deaf.get(name, 0.0) > cluster.real
            if cluster.weights().get(revision):
                engines.serve(name, 1, factor if revision == canary else 1.0)
        slices = await engines.read(ready)
        cluster.engine = None if slices is None else list(slices)
        cluster.decided(cluster.observe())
        if cluster.weights().get(canary) == 50:
            missing.append(len(cluster.pods[canary]) - sum(revision == canary for _, revision in ready))
        if canary and not cluster.status.canary:
            break
    assert cluster.status.rollout.phase is phase, cluster.status.rejected
    assert [one.reason for one in cluster.status.rejected] == ([] if factor == 1.0 else ["LatencyRegression"])
    assert (cluster.status.stable != stable) is (factor == 1.0)
    assert factor > 1 or min(missing) >= 1, "a pod was starting at any time"
