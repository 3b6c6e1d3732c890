"""A cluster in virtual time, as `decide` observes it. Nothing here decides.

Pods follow the planned replicas and become ready some time later, and traffic follows the weights.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from support.sample_service import sample

from pagefleet_contract.names import PREFILL_LABEL
from pagefleet_contract.sketch import bucket_of
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.records import manifest
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import (
    GateReading,
    LoadTestReading,
    Observation,
    PodReading,
    RevisionReading,
    Slice,
)
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Condition, Status

TICK = 2.0


class Cluster:
    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.now = 1_000_000.0  # the clock's time, which may jump
        self.real = 0.0  # seconds that have passed
        self.ahead = 0.0  # seconds by which the clock of API server and kubelets is ahead of the operator's
        self.spec: dict[str, Any] = sample()["spec"]
        self.generation = 1
        self.status = Status()
        self.replicas: dict[str, int] = {}
        self.pods: dict[str, list[float]] = {}  # revision -> when each pod becomes ready
        self.slices: list[Slice] | None = []
        self.engine: list[Slice] | None = []
        self.gates: dict[str, GateReading] = {}
        self.load_test: LoadTestReading | None = None
        self.action = ""
        self.actions = 0
        self.waiting: int | None = 0
        self.kv_pages_free = 100
        self.factor, self.slow_stable = 1.0, 1.0
        self.was_ready: set[str] = set()
        self.groups = False  # whether LeaderWorkerSets are served
        self.dropped: frozenset[str] = frozenset()  # fields of pods that the API server does not store
        self.plan: Plan | None = None
        self.uid, self.created = "uid", 0.0  # of the InferenceService
        self.records: dict[str, dict[str, Any]] = {}  # ControllerRevisions by name
        self.announced = 0

    def replace_service(self, records: bool = True) -> None:
        """Delete the InferenceService with its children, and apply its spec again; `records` are still there."""
        self.uid, self.created, self.status = f"{self.uid}+", self.now + self.ahead, Status()
        self.replicas, self.pods, self.was_ready, self.action = {}, {}, set(), ""
        if not records:
            self.records = {}

    def edit(self, number: int) -> None:
        """Request another revision; everything else of the spec stays."""
        self.spec = copy.deepcopy(self.spec)
        self.spec["engine"]["args"] = [f"--max-num-seqs={number}"]
        self.generation += 1

    def request(self, **parts: object) -> None:
        """Replace these parts of the spec."""
        self.spec = {**self.spec, **parts}
        self.generation += 1

    def serving(self) -> str:
        """Decide until a revision gets requests, and return it."""
        self.until(lambda status: bool(status.traffic))
        return self.status.stable

    def act(self, action: str, revision: str = "") -> None:
        """Annotate, and let the operator decide once."""
        self.actions += 1
        asked = {"id": f"a{self.actions}", "action": action, "by": "anna"}
        self.action = json.dumps({**asked, "revision": revision} if revision else asked)
        self.tick()

    def answer(self) -> tuple[str, bool]:
        """The outcome of the last action, and whether that is the latest annotation's."""
        done = self.status.action
        return (done.outcome, done.id == f"a{self.actions}") if done else ("", False)

    def weights(self) -> dict[str, int]:
        return {entry.revision: entry.weight for entry in self.status.traffic}

    def weight(self) -> int:
        """The canary's weight."""
        return self.weights().get(self.status.canary, 0)

    def condition(self, kind: str) -> Condition:
        return next(condition for condition in self.status.conditions if condition.type == kind)

    def tick(self, engines: bool = True) -> Status:
        """Let two seconds of traffic pass, then decide."""
        self.wait(engines)
        return self.decided(self.observe())

    def decided(self, observation: Observation) -> Status:
        """Decide, apply the plan, and return the new status."""
        self.apply(decide(observation, self.now))
        return self.status

    def wait(self, engines: bool = True) -> None:
        """Let two seconds of traffic pass."""
        self.now, self.real = round(self.now + TICK, 6), self.real + TICK
        self.measure(engines)

    def until(self, holds: Callable[[Status], bool], ticks: int = 600) -> None:
        for _ in range(ticks):
            if holds(self.tick()):
                return
        raise TimeoutError(f"not within {ticks} decisions; the status is {codec.dump(self.status)}")

    def observe(self) -> Observation:
        revisions = {}
        for name, count in self.replicas.items():
            pods = tuple(self._pod(name, i, at) for i, at in enumerate(self.pods[name][:count]))
            revisions[name] = RevisionReading(name, count, pods)
            if revisions[name].ready:
                self.was_ready.add(name)
        return Observation(
            namespace="ns", name="chat", uid=self.uid, generation=self.generation, spec=self.spec, status=self.status,
            revisions=revisions, slices=None if self.slices is None else tuple(self.slices),
            engine_slices=None if self.engine is None else tuple(self.engine), gates=self.gates,
            prometheus={} if self.engine is None else {"": tuple(self.engine)},
            load_test=self.load_test, action=self.action, image="operator:1",
            groups=self.groups, dropped=self.dropped, created=self.created, records=manifest.readings(self.records.values()),
            announced_records=self.announced,
        )  # fmt: skip

    def _pod(self, name: str, number: int, at: float) -> PodReading:
        ready = at <= self.real
        at += self.now - self.real + self.ahead
        free = self.kv_pages_free if name == self.status.canary else 100
        waiting = self.waiting if ready else None
        return PodReading(
            name=f"{name}-{number}",
            ready=ready,
            terminating=False,
            created=at - 5,
            ready_since=at if ready else None,
            load=None if waiting is None else EngineLoad(1, waiting, kv_pages_total=160, kv_pages_free=free),
            load_age=None if waiting is None else 1.0,
        )

    def apply(self, plan: Plan) -> None:
        self.plan = plan
        self.status = codec.load(json.loads(json.dumps(codec.dump(plan.status))))
        for child in plan.children:
            labels: Any = child["metadata"]["labels"]  # type: ignore[index]
            if child["kind"] in ("Deployment", "LeaderWorkerSet") and PREFILL_LABEL not in labels:
                name = labels["pagefleet.io/revision"]
                count = child["spec"]["replicas"]  # type: ignore[index]
                pods = self.pods.setdefault(name, [])
                while len(pods) < count:
                    pods.append(self.real + self.source.uniform(0, 20))
                del pods[count:]
                self.replicas[name] = count
        for record in json.loads(json.dumps(plan.records)):
            known = self.records.get(record["metadata"]["name"], record)
            assert record["metadata"]["resourceVersion"] == known["metadata"]["resourceVersion"]
            record["metadata"] |= {"uid": record["metadata"]["name"], "resourceVersion": str(self.now)}
            if known["metadata"]["annotations"] == record["metadata"]["annotations"] and known is not record:
                continue
            self.records[record["metadata"]["name"]] = record
        for gone in plan.withdrawn:
            self.records.pop(gone.name, None)
        for name in plan.delete:
            self.replicas.pop(name, None)
            self.pods.pop(name, None)

    def measure(self, engines: bool = True) -> None:
        """Measure two seconds of traffic by the present weights; the canary is `factor` times slower.

        Mirrored requests are in the engines' own numbers only.
        """
        mirror = self.status.mirror
        for entry in self.status.traffic:
            if self.slices is not None:
                self.slices.append(self._slice(entry.revision, entry.weight // 5))
            if self.engine is not None and engines:
                self.engine.append(self._slice(entry.revision, entry.weight // 5))
        if mirror is not None and self.engine is not None and engines:
            self.engine.append(self._slice(mirror.revision, 10))

    def _slice(self, revision: str, requests: int) -> Slice:
        slow = self.factor if revision == self.status.canary else self.slow_stable
        histogram: dict[int, int] = {}
        for _ in range(requests):
            bucket = bucket_of(0.1 * slow * self.source.lognormvariate(0, 0.3))
            histogram[bucket] = histogram.get(bucket, 0) + 1
        return Slice("g", self.now - TICK, TICK, revision, "s", requests, 0, {"ttft": histogram})


def started(steps: list[dict[str, Any]] | None = None, **rollout: Any) -> Cluster:
    """Return a cluster whose first revision serves, and whose spec just asked for a second one."""
    cluster = Cluster(1)
    cluster.until(lambda status: bool(status.traffic))
    if steps is not None:
        cluster.spec["rollout"]["steps"] = steps
    cluster.spec["rollout"].update(rollout)
    cluster.edit(2)
    return cluster
