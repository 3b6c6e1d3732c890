"""Protects the rollout automaton on random histories in virtual time: weights sum to 100, none on a revision that never
had a ready pod, no pass without data, rejected revisions stay rejected, the stable keeps its capacity, conditions move
only with their status, and deciding twice on the same changes nothing."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_local.demo.stage import sample
from pagefleet_operator.domain import status_json
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.observation import Observation, PodReading, RevisionReading, Slice
from pagefleet_operator.domain.plan import Plan
from pagefleet_operator.domain.sketch import index
from pagefleet_operator.domain.status import AlertRecord, Phase, Status


class Cluster:
    """What decide sees: pods follow the planned replicas, ready some time later."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.now = 1000.0
        self.spec: dict[str, Any] = sample()["spec"]
        self.generation = 1
        self.status = Status()
        self.replicas: dict[str, int] = {}
        self.pods: dict[str, list[float]] = {}  # revision -> when each pod becomes ready
        self.slices: list[Slice] | None = []
        self.waiting: int | None = 0
        self.was_ready: set[str] = set()

    def observe(self) -> Observation:
        revisions = {}
        for name, count in self.replicas.items():
            pods = tuple(self._pod(name, i, at) for i, at in enumerate(self.pods[name][:count]))
            revisions[name] = RevisionReading(name, count, pods)
            if revisions[name].ready:
                self.was_ready.add(name)
        slices = None if self.slices is None else tuple(self.slices)
        return Observation("ns", "chat", "uid", self.generation, self.spec, self.status, revisions, slices)

    def _pod(self, name: str, number: int, at: float) -> PodReading:
        ready = at <= self.now
        signals = {"waiting": self.waiting, "running": 1, "free_pages": 100, "total_pages": 160, "signals_age": 1.0}
        return PodReading(f"{name}-{number}", ready, False, at - 5, at if ready else None,
                          **(signals if ready and self.waiting is not None else {}))  # fmt: skip

    def apply(self, plan: Plan) -> None:
        self.status = status_json.load(status_json.dump(plan.status))
        for child in plan.children:
            if child["kind"] == "Deployment":
                name = child["metadata"]["labels"]["pagefleet.io/revision"]  # type: ignore[index]
                count = child["spec"]["replicas"]  # type: ignore[index]
                pods = self.pods.setdefault(name, [])
                while len(pods) < count:
                    pods.append(self.now + self.source.uniform(0, 20))
                del pods[count:]
                self.replicas[name] = count
        for name in plan.delete:
            self.replicas.pop(name, None)
            self.pods.pop(name, None)

    def measure(self, factor: float) -> None:
        """Two seconds of traffic by the present weights; the canary `factor` times slower."""
        if self.slices is None:
            return
        for entry in self.status.traffic:
            requests = entry.weight // 5
            slow = factor if entry.revision == self.status.canary else 1.0
            histogram: dict[int, int] = {}
            for _ in range(requests):
                bucket = index(0.1 * slow * self.source.lognormvariate(0, 0.3))
                histogram[bucket] = histogram.get(bucket, 0) + 1
            piece = Slice("g", self.now - 2, 2.0, entry.revision, "s", requests, 0, {"ttft": histogram})
            self.slices.append(piece)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "wait", "wait", "edit", "back", "break", "alert", "blind", "see", "busy", "deaf", "jump"]
        ),
        st.integers(0, 3),
    ),
    max_size=12,
)


def act(cluster: Cluster, action: str, number: int) -> None:
    match action:
        case "edit" | "back":
            cluster.spec = sample()["spec"]
            if action == "edit":
                cluster.spec["engine"]["args"] = [f"--max-num-seqs={number + 1}"]
            cluster.generation += 1
        case "break":
            cluster.spec = copy.deepcopy(cluster.spec)
            cluster.spec["scaling"]["min"] = 9
            cluster.generation += 1
        case "alert":
            labels = {"severity": "page"}
            alert = AlertRecord(f"f{cluster.now}", "Bad", cluster.now, cluster.status.canary, cluster.now, labels)
            cluster.status = replace(cluster.status, alerts=(alert,))
        case "blind":
            cluster.slices = None
        case "see":
            cluster.slices = cluster.slices or []
        case "busy":
            cluster.waiting = number * 10
        case "deaf":
            cluster.waiting = None
        case "jump":
            cluster.now += (-3600.0, 3600.0)[number % 2]


def check(before: Observation, cluster: Cluster, plan: Plan) -> None:
    old, new = before.status, plan.status
    weights = {entry.revision: entry.weight for entry in new.traffic}
    assert not weights or sum(weights.values()) == 100
    assert set(weights) <= cluster.was_ready, "no weight on a revision that never had a ready pod"
    assert len({rejection.hash for rejection in new.rejected}) == len(new.rejected)
    assert new.canary not in {rejection.hash for rejection in new.rejected}, "a rejected revision is not tried again"
    if new.stable != old.stable and old.stable and old.traffic:
        assert new.stable == old.canary, "only a canary is promoted"
        assert before.slices is not None, "nothing is promoted without measurements"
        assert new.rollout.verdict is not None
        assert new.rollout.verdict.outcome == "Passed"
    if new.canary and new.canary == old.canary and new.rollout.phase is Phase.STEP is old.rollout.phase:
        assert weights[new.canary] >= {t.revision: t.weight for t in old.traffic}.get(new.canary, 0)
    desired = {record.hash: record.desired for record in new.revisions}
    earlier = {record.hash: record.desired for record in old.revisions}
    if new.canary and new.stable == old.stable and earlier.get(new.stable):
        assert desired[new.stable] >= earlier[new.stable], "the stable never shrinks beside a canary"
    assert all(0 <= count <= 3 for name, count in desired.items() if name == new.stable)
    if new.rollout.phase is Phase.ROLLED_BACK:
        assert weights == {new.stable: 100}
    previous = {condition.type: condition for condition in old.conditions}
    for condition in new.conditions:
        was = previous.get(condition.type)
        moved = was is None or was.status != condition.status
        assert condition.observed_generation == cluster.generation
        since = cluster.now if was is None or moved else was.last_transition_time
        assert abs(condition.last_transition_time - since) < 1e-5
    assert len(new.decisions) <= 50


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), ACTIONS, st.sampled_from([1.0, 1.0, 4.0]))
def test_every_history_keeps_the_invariants(seed: int, actions: list[tuple[str, int]], factor: float) -> None:
    cluster = Cluster(seed)
    for action, number in [("wait", 3), *actions, ("wait", 3)]:
        act(cluster, action, number)
        for _ in range(8 if action == "wait" else 2):
            cluster.now = round(cluster.now + 2.0, 6)
            cluster.measure(factor)
            seen = cluster.observe()
            plan = decide(seen, cluster.now)
            check(seen, cluster, plan)
            settled = plan
            for _ in range(6):
                settled, last = decide(replace(seen, status=settled.status), cluster.now), settled
                if settled.status == last.status:
                    break
            assert settled.status == last.status, "deciding again on the same ends in the same"
            assert not settled.events
            cluster.apply(plan)


def test_a_good_canary_is_promoted_and_a_bad_one_is_not() -> None:
    for factor, promoted in ((1.0, True), (4.0, False)):
        cluster = Cluster(1)
        stable = ""
        for tick in range(200):
            cluster.now += 2.0
            cluster.measure(factor)
            seen = cluster.observe()
            cluster.apply(decide(seen, cluster.now))
            if tick == 20:
                stable = cluster.status.stable
                cluster.spec = copy.deepcopy(cluster.spec)
                cluster.spec["engine"]["args"] = ["--max-num-seqs=2"]
        assert stable
        assert (cluster.status.stable != stable) is promoted
        assert not cluster.status.canary
        assert cluster.status.rollout.phase is (Phase.IDLE if promoted else Phase.ROLLED_BACK)
        if not promoted:
            assert [rejection.reason for rejection in cluster.status.rejected] == ["LatencyRegression"]
            assert set(cluster.replicas) == {stable}
