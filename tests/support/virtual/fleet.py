"""A fleet in virtual time for tests of the autoscaler: replicas with slots, KV pages and a step time, requests that
arrive, queue, run and end. Not a measuring tool: one step is one second, dispatch is to the least loaded."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pagefleet_operator.domain.scaling.autoscale import Recommendation, recommend
from pagefleet_operator.domain.scaling.load import remember, sample
from pagefleet_operator.domain.spec.scaling import Scaling
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import PodFault, PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad
from pagefleet_operator.domain.status.status import ScalingRecord

STEP = 10.0


@dataclass
class Request:
    arrived: float
    prompt: int
    output: int
    done: float = 0.0
    first: float | None = None


@dataclass
class Replica:
    name: str
    created: float
    ready_at: float
    running: list[Request] = field(default_factory=list)
    queue: deque[Request] = field(default_factory=deque)
    ending: bool = False
    tokens: float = 0.0
    hung: bool = False  # it takes requests, does nothing, and reports that it is idle and free


@dataclass
class VirtualFleet:
    """`rate(t)`: requests per second. `startup`: seconds from created to ready."""

    rate: Callable[[float], float]
    scaling: Scaling
    seed: int = 0
    startup: float = 60.0
    slots: int = 32
    pages: int = 2000
    base: float = 0.02
    slope: float = 0.0008
    every: float = 5.0
    max_pods: int = 10_000
    now: float = 1_000_000.0
    slo: float = 1.0
    engines_silent: bool = False  # engines do not answer
    gateways_silent: bool = False  # gateways do not answer
    counts_tokens: bool = True  # engines report the tokens that they generate
    decide: Callable[[VirtualFleet], int] | None = None

    def __post_init__(self) -> None:
        self.start = self.now
        self.source = random.Random(self.seed)
        self.replicas = [Replica(f"r{i}", self.now, self.now) for i in range(max(1, self.scaling.min))]
        self.desired: int | None = None
        self.record = ScalingRecord("a")
        self.history: tuple[Sample, ...] = ()
        self.arrivals: list[float] = []
        self.held: deque[Request] = deque()
        self.changes: list[tuple[float, int, int, str]] = []
        self.recommendations: list[Recommendation] = []
        self.hours = 0.0
        self.met = self.total = 0
        self.numbers = len(self.replicas)
        self._next = self.now
        self._step_end = self.now + STEP
        self._count = 0

    @property
    def serving(self) -> list[Replica]:
        return [r for r in self.replicas if r.ready_at <= self.now and not r.ending]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self._arrive()
            for replica in self.replicas:
                self._serve(replica)
            self.replicas = [r for r in self.replicas if not (r.ending and not r.running and not r.queue)]
            self.hours += len(self.replicas) / 3600
            if self.now >= self._next:
                self._decide()
                self._next = self.now + self.every

    def _arrive(self) -> None:
        for _ in range(self._poisson(self.rate(self.now - self.start))):
            self._count += 1
            output = max(4, min(1024, int(self.source.lognormvariate(5.0, 0.7))))
            prompt = max(8, min(2048, int(self.source.lognormvariate(5.5, 0.8))))
            self.held.append(Request(self.now, prompt, output))
        serving = self.serving if self.held else []
        loads = [(len(one.running) + len(one.queue), place) for place, one in enumerate(serving)]
        heapq.heapify(loads)
        while self.held and loads:
            least, place = loads[0]
            heapq.heapreplace(loads, (least + 1, place))
            serving[place].queue.append(self.held.popleft())
        if self.now >= self._step_end:
            self.arrivals.append(self._count / STEP)
            self._count, self._step_end = 0, self.now + STEP

    def _poisson(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self.source.gauss(mean, math.sqrt(mean))))
        count, product, limit = 0, self.source.random(), math.exp(-mean)
        while product > limit:
            count, product = count + 1, product * self.source.random()
        return count

    def used(self, replica: Replica) -> int:
        return sum((r.prompt + int(r.done)) // 16 + 1 for r in replica.running)

    def _serve(self, replica: Replica) -> None:
        if replica.hung:
            replica.tokens = 0.0
            return
        used = self.used(replica)
        budget = 4000.0  # prompt tokens computed in a second
        while replica.queue and len(replica.running) < self.slots and budget > 0:
            request = replica.queue[0]
            need = (request.prompt + request.output // 2) // 16 + 1
            if used + need > self.pages:
                break
            used += need
            budget -= request.prompt
            replica.running.append(replica.queue.popleft())
        if not replica.running:
            replica.tokens = 0.0
            return
        step = self.base + self.slope * len(replica.running)
        made = 1.0 / step
        replica.tokens = made * len(replica.running)
        left = []
        for request in replica.running:
            if request.first is None:
                request.first = self.now - request.arrived - 1.0 + 0.1
                self.total += 1
                self.met += request.first <= self.slo
            request.done += made
            if request.done < request.output:
                left.append(request)
        replica.running = left

    def reading(self) -> RevisionReading:
        pods = []
        for number, replica in enumerate(self.replicas):
            ready = replica.ready_at <= self.now
            stuck = number >= self.max_pods
            pod = PodReading(
                replica.name, ready and not stuck, replica.ending, replica.created,
                replica.ready_at if ready and not stuck else None,
                fault=PodFault("Unschedulable", "0/3 nodes are available", "spec.resources") if stuck else None,
                startup=replica.ready_at - replica.created if ready and replica.created > self.start else None,
            )  # fmt: skip
            if ready and not stuck and not self.engines_silent:
                pod = PodReading(
                    pod.name, True, pod.terminating, pod.created, pod.ready_since, startup=pod.startup,
                    load=EngineLoad(
                        running=0 if replica.hung else len(replica.running),
                        waiting=0 if replica.hung else len(replica.queue),
                        waiting_tokens=0 if replica.hung else sum(r.prompt for r in replica.queue),
                        kv_pages_total=self.pages,
                        kv_pages_free=self.pages if replica.hung else max(0, self.pages - self.used(replica)),
                        preemptions=0.0, tokens=replica.tokens if self.counts_tokens else None,
                    ),
                    load_age=0.5,
                )  # fmt: skip
            pods.append(pod)
        return RevisionReading("a", self.desired, tuple(pods), self.history, self.slots)

    def load(self) -> ServiceLoad | None:
        if self.gateways_silent:
            return None
        return ServiceLoad(2.0, len(self.held), tuple(self.arrivals[-360:]), STEP)

    def _decide(self) -> None:
        reading = self.reading()
        self.history = remember(self.history, sample(reading, self.now))
        if self.decide is not None:
            replicas = self.decide(self)
        else:
            answer = recommend(reading, self.load(), self.desired, self.record, self.scaling, self.now)
            self.record, replicas = answer.record, answer.replicas
            self.recommendations.append(answer)
            if self.desired is not None and replicas != self.desired:
                self.changes.append((self.now - self.start, self.desired, replicas, answer.message))
        self.desired = replicas
        alive = [r for r in self.replicas if not r.ending]
        for _ in range(replicas - len(alive)):
            self.numbers += 1
            self.replicas.append(Replica(f"r{self.numbers}", self.now, self.now + self.startup))
        for replica in sorted(alive, key=lambda r: (r.ready_at <= self.now, len(r.running)))[
            : max(0, len(alive) - replicas)
        ]:
            replica.ending = True
