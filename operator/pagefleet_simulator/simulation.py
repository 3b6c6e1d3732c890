"""The simulation of every single request: arrivals, gateway, engines, pods and a scaler in virtual time.

It takes discrete events from a heap; nothing changes between two events. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pagefleet_operator.domain.scaling import load_sums
from pagefleet_operator.domain.status.engine_load import NO_LOAD, EngineLoad, total
from pagefleet_simulator.fleet.faults import Fault, Hang, Outage
from pagefleet_simulator.fleet.gateway import Gateway
from pagefleet_simulator.fleet.pods import Phase, Pod, PodRules, Pods
from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.request import Arrival, Ending, Request, requests
from pagefleet_simulator.fleet.view import Bounds, PodView, Scaler, Sums, View
from pagefleet_simulator.results.outcome import Ends, Latencies, Moment, Outcome, ScaleEvent

ARRIVAL_STEP, ARRIVAL_STEPS = load_sums.STEP, load_sums.STEPS
# As the slices of gateways and of pagefleet_operator.domain.scaling.load_sums: slices of 2 s, closed 2 s after their end.
SLICE, CLOSED_AFTER = 2.0, 4.0
SLICES = round(ARRIVAL_STEP / SLICE)
TTFT_WINDOW, MIN_SAMPLES = 60.0, 20
TIMELINE_SECONDS = 15.0


@dataclass(frozen=True)
class Setting:
    """The setting of a simulation.

    `initial` replicas are ready at the start; `quota` is a number of accelerators. A held request is dropped after `hold`
    seconds. The simulation ends at most `drain_timeout` seconds after the last arrival. Requests of the first of `priorities`
    go first.
    """

    profile: Profile
    bounds: Bounds
    initial: int = 1
    quota: int | None = None
    seed: int = 0
    hold: float = 600.0
    held: int = 4096
    drain_timeout: float = 3600.0
    prefix_caching: bool = True
    priorities: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


class Simulation:
    def __init__(self, setting: Setting, scaler: Scaler, arrivals: Sequence[Arrival], duration: float) -> None:
        self.setting, self.scaler, self.duration = setting, scaler, duration
        self.now = 0.0
        self.requests = requests(arrivals, setting.priorities)
        self.events: list[ScaleEvent] = []
        self.timeline: list[Moment] = []
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._memory = scaler.start()
        self._desired = setting.initial
        self.pods = Pods(
            setting.profile,
            np.random.default_rng([setting.seed, 7]),
            self._at,
            self._ready,
            PodRules(setting.quota, scaler.removal, setting.prefix_caching),
        )
        self.gateway = Gateway(self.pods, setting.hold, setting.held, setting.seed)
        self._open = 0  # requests that arrived and have not ended
        self._area, self._area_since, self._looked = 0.0, 0.0, 0.0
        self._counts: deque[int] = deque(maxlen=ARRIVAL_STEPS * SLICES + 2)
        self._slice_end, self._slice_count = SLICE, 0
        self._first_tokens: deque[tuple[float, float]] = deque()

    def run(self, progress: Callable[[float], None] | None = None) -> Outcome:
        """Run to the end. `progress` gets the finished share from time to time."""
        self.pods.warm(self.setting.initial)
        self._at(self.scaler.period, self._decide)
        self._at(0.0, self._mark)
        for fault in self.setting.faults:
            if isinstance(fault, Hang):
                self._hang(fault)
        index, total, end = 0, len(self.requests), self.duration
        while True:
            arriving = self.requests[index].arrival.at if index < total else math.inf
            due = self._queue[0][0] if self._queue else math.inf
            now = min(arriving, due)
            if now > end and (self._open == 0 or now > end + self.setting.drain_timeout):
                break
            self._pass(now)
            if arriving <= due:
                self._arrive(self.requests[index])
                index += 1
                if progress is not None and index % 2000 == 0:
                    progress(min(1.0, now / self.duration))
            else:
                heapq.heappop(self._queue)[2](now)
        return self._outcome(max(end, self.now))

    # -- events -------------------------------------------------------------------------------------------------------

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._queue, (time, self._order, action))

    def _pass(self, now: float) -> None:
        self._area += self._open * (now - self._area_since)
        self._area_since = self.now = now
        while now >= self._slice_end:
            self._counts.append(self._slice_count)
            self._slice_count = 0
            self._slice_end += SLICE

    def _arrive(self, request: Request) -> None:
        self._open += 1
        self._slice_count += 1
        self._route(request, self.now)

    def _route(self, request: Request, now: float) -> None:
        pod = self.gateway.pick(request, now)
        if pod is None:
            if request.ending is Ending.DROPPED:
                self._open -= 1
            return
        before = pod.engine.due
        self._ended(pod, pod.engine.put(request, now), now)
        self._plan(pod, before)

    def _plan(self, pod: Pod, before: float) -> None:
        if pod.engine.due != before and pod.engine.due < math.inf:
            due = pod.engine.due
            self._at(due, lambda now: self._step(pod, due, now))

    def _step(self, pod: Pod, due: float, now: float) -> None:
        if pod.engine.due == due:
            self._ended(pod, pod.engine.finish(), now)
            self._plan(pod, due)

    def _ended(self, pod: Pod, ended: Sequence[Request], now: float) -> None:
        self._open -= len(ended)
        self.gateway.end(pod, ended)
        for request in ended:
            self._first_tokens.append((request.first, request.ttft))
        if ended and pod.phase is Phase.DRAINING:
            self.pods.emptied(pod, now)

    def _ready(self, now: float) -> None:
        self._open -= len(self.gateway.expire(now))
        for request in self.gateway.release():
            self._route(request, now)

    def _hang(self, fault: Hang) -> None:
        def begin(now: float) -> None:
            pod = self.pods.ready[0]
            self._ended(pod, pod.engine.hang(now), now)
            self._at(fault.end, lambda end: resume(pod, end))

        def resume(pod: Pod, now: float) -> None:
            before = pod.engine.due
            pod.engine.resume(now)
            self._plan(pod, before)

        self._at(fault.begin, begin)

    # -- scaling ------------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        self._open -= len(self.gateway.expire(now))
        if now > self.duration and self._open == 0:
            return
        view = self._view(now)
        decision = self.scaler.decide(view, self._memory, self.setting.bounds)
        self._memory = decision.memory
        replicas = self.setting.bounds.within(decision.replicas)
        if replicas != self._desired:
            self.events.append(ScaleEvent(now, self._desired, replicas))
            self._desired = replicas
        self.pods.resize(replicas, now)
        self._looked, self._area = now, 0.0
        self._at(now + self.scaler.period, self._decide)

    def _view(self, now: float) -> View:
        span = max(1e-9, now - self._looked)
        pods = self.pods.live + self.pods.draining
        views = tuple(_pod_view(pod, now, span) for pod in pods)
        read = not any(isinstance(fault, Outage) and fault.covers(now) for fault in self.setting.faults)
        if not read:
            views = tuple(replace(one, load=NO_LOAD, prefill_left=0, busy=0.0, itl=None, ttft=None) for one in views)
        while self._first_tokens and self._first_tokens[0][0] < now - TTFT_WINDOW:
            self._first_tokens.popleft()
        recent = sorted(ttft for _, ttft in self._first_tokens)
        newest = closed(now)
        return View(
            now=now,
            since=self._looked,
            desired=self._desired,
            sums=sums(views),
            held=len(self.gateway.held),
            concurrency=self._area / span,
            arrivals=rates(list(self._counts)[: round((newest - self._slice_end) / SLICE) + 1 or None]),
            arrivals_end=newest,
            ttft=recent[math.ceil(0.95 * len(recent)) - 1] if len(recent) >= MIN_SAMPLES else None,
            startups=tuple(
                (pod.ready_since, pod.ready_since - pod.created)
                for pod in self.pods.ready
                if pod.ready_since > self._looked
            ),
            slots=self.setting.profile.max_sequences,
            look=lambda: views,
            read=read,
        )

    def _mark(self, now: float) -> None:
        engines = [pod.engine for pod in (*self.pods.ready, *self.pods.draining)]
        queue = len(self.gateway.held) + sum(len(engine.waiting) for engine in engines)
        running = sum(engine.running for engine in engines)
        ready = len(self.pods.ready)
        self.timeline.append(Moment(now, ready, len(self.pods.live) - ready, self._desired, queue, running))
        if now < self.duration or self._open:
            self._at(now + TIMELINE_SECONDS, self._mark)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _outcome(self, end: float) -> Outcome:
        for request in self.requests:
            if request.ending is Ending.OPEN:
                request.ending = Ending.LEFT
        served = [request for request in self.requests if request.ending is Ending.SERVED]
        ended = {ending: sum(1 for one in self.requests if one.ending is ending) for ending in Ending}
        return Outcome(
            scaler=self.scaler.name,
            mode="requests",
            seconds=end,
            requests=len(self.requests),
            served=ended[Ending.SERVED],
            dropped=ended[Ending.DROPPED],
            left=ended[Ending.LEFT],
            tokens=sum(one.arrival.prompt + one.arrival.output for one in served),
            preemptions=sum(pod.engine.counters.preemptions for pod in self.pods.all),
            accelerator_seconds=self.pods.billed(end),
            latencies=Latencies(
                np.array([one.ttft for one in served]),
                np.array([one.tpot for one in served]),
                np.ones(len(served)),
            ),
            ends=_ends(self.requests),
            events=tuple(self.events),
            timeline=tuple(self.timeline),
        )


def _ends(ended: Sequence[Request]) -> Ends:
    served = [one.ending is Ending.SERVED for one in ended]

    def times(of: Callable[[Request], float]) -> np.ndarray:
        return np.array([of(one) if is_served else math.inf for one, is_served in zip(ended, served, strict=True)])

    return Ends(
        priority=np.array([one.arrival.priority for one in ended], dtype=np.str_),
        ttft=times(lambda one: one.ttft),
        tpot=times(lambda one: one.tpot),
        e2e=times(lambda one: one.e2e),
        refused=np.array([one.ending is Ending.DROPPED for one in ended]),
    )


def closed(now: float) -> float:
    """The end of the newest slice that every gateway has closed."""
    return math.floor((now - CLOSED_AFTER) / SLICE) * SLICE + SLICE


def rates(counts: Sequence[float]) -> tuple[float, ...]:
    """Requests per second in whole steps of ARRIVAL_STEP up to the last slice, from the counts of slices."""
    steps = len(counts) // SLICES
    whole = np.asarray(counts[len(counts) - steps * SLICES :], dtype=float).reshape(steps, SLICES)
    return tuple((whole.sum(axis=1) / ARRIVAL_STEP).tolist())


def _pod_view(pod: Pod, now: float, span: float) -> PodView:
    engine = pod.engine
    engine.look(now)
    count = engine.counters
    fresh = (count.busy, count.steps, count.generated, count.preemptions, count.ttft, count.first_tokens)
    old = pod.last_counters or (0.0, 0, 0, 0, 0.0, 0)
    busy, steps, tokens, preemptions, ttft, firsts = (a - b for a, b in zip(fresh, old, strict=True))
    pod.last_counters = fresh
    return PodView(
        name=f"pod-{pod.index:05d}",
        ready=pod.phase is Phase.READY,
        draining=pod.phase is Phase.DRAINING,
        created=pod.created,
        ready_since=None if math.isnan(pod.ready_since) else pod.ready_since,
        stuck=pod.phase is Phase.PENDING,
        load=EngineLoad(
            running=0 if engine.hung else engine.running,
            waiting=0 if engine.hung else len(engine.waiting),
            waiting_tokens=0 if engine.hung else engine.waiting_tokens,
            kv_pages_total=engine.profile.pages,
            kv_pages_free=engine.profile.pages - (0 if engine.hung else engine.pages_held),
            preemptions=preemptions / span,
            tokens=tokens / span,
        ),
        prefill_left=engine.prefill_left,
        busy=min(1.0, busy / span),
        itl=busy / steps if steps else None,
        ttft=ttft / firsts if firsts else None,
    )


def sums(pods: Sequence[PodView]) -> Sums:
    ready = [pod for pod in pods if pod.ready]
    starting = [pod for pod in pods if not pod.ready and not pod.draining]
    load = total(pod.load for pod in ready)
    return Sums(
        ready=len(ready),
        starting=len(starting),
        stuck=sum(1 for pod in starting if pod.stuck),
        running=load.running,
        waiting=load.waiting,
        unqueued=sum(1 for pod in ready if not pod.load.waiting),
        waiting_tokens=load.waiting_tokens or 0,
        kv_pages_used=load.kv_pages_used,
        kv_pages_total=load.kv_pages_total or 0,
        busy=sum(pod.busy for pod in ready) / len(ready) if ready else 0.0,
        preemptions=load.preemptions or 0.0,
        tokens=load.tokens or 0.0,
    )
