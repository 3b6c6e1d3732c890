"""The simulation of flows instead of requests: each replica is a few numbers, and all replicas advance in steps of 2 s.

It is for weeks of traffic and thousands of replicas. Sequences are a continuum that ends at the rate of the mean answer.
A request's delay is the queue before it at its arrival, over the speed at which first tokens come. Chance within a step
is not simulated, so tails are shorter than in the simulation of single requests; a test compares the two. There is no
preemption: a replica runs only as many sequences as its pages hold.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_simulator.fleet.pods import Removal
from pagefleet_simulator.fleet.view import PodView, Scaler, Sums, View
from pagefleet_simulator.results.grid import LatencyGrid
from pagefleet_simulator.results.outcome import Floats, Moment, Outcome, ScaleEvent
from pagefleet_simulator.simulation import ARRIVAL_STEP, ARRIVAL_STEPS, TIMELINE_SECONDS, TTFT_WINDOW, Setting
from pagefleet_simulator.traces.flow import STEP, Flow

FREE, PENDING, STARTING, READY, DRAINING = range(5)
EMPTY = 0.25  # sequences: a drained replica with less is gone


class FluidSimulation:
    """The pods, gateway and scaler of `simulation.Simulation`, for flows."""

    def __init__(self, setting: Setting, scaler: Scaler, arriving: Flow) -> None:
        self.setting, self.scaler, self.flow = setting, scaler, arriving
        self.profile = setting.profile
        size = setting.bounds.max + setting.bounds.max // 4 + 8
        self.phase: NDArray[np.int8] = np.zeros(size, dtype=np.int8)
        self.created, self.ready_at, self.bound_at = np.zeros(size), np.full(size, np.inf), np.full(size, np.inf)
        self.running, self.queue = np.zeros(size), np.zeros(size)
        # Since the scaler's last decision: steps, generated tokens, first tokens and their delays.
        self.steps, self.tokens, self.firsts, self.delays = (np.zeros(size) for _ in range(4))
        self.held: deque[tuple[float, float]] = deque()
        self.grid = LatencyGrid()
        self.dropped = self.served = self.billed = self.tokens_served = self.concurrency = 0.0
        self.events: list[ScaleEvent] = []
        self.timeline: list[Moment] = []
        self._random = np.random.default_rng([setting.seed, 7])
        self._desired = setting.initial
        self._memory = scaler.start()
        self._recent: deque[tuple[float, float, float]] = deque()  # (time, ttft, weight)
        self._counts: deque[float] = deque(maxlen=ARRIVAL_STEPS)
        self._looked, self._prompt, self._context = 0.0, 1.0, 1.0
        self._refresh()

    def run(self, progress: Callable[[float], None] | None = None) -> Outcome:
        self.phase[: self.setting.initial] = READY
        self.ready_at[: self.setting.initial] = self.bound_at[: self.setting.initial] = 0.0
        self._refresh()
        decide_at, mark_at, count = self.scaler.period, 0.0, 0.0
        total = len(self.flow.arrivals)
        for index in range(total):
            now = index * STEP
            if now >= mark_at:
                self._mark(now)
                mark_at += TIMELINE_SECONDS
            if now >= decide_at:
                self._decide(now)
                decide_at += self.scaler.period * math.ceil((now + 1e-9 - decide_at) / self.scaler.period + 1e-9)
            self._advance(index, now)
            count += float(self.flow.arrivals[index])
            if (now + STEP) % ARRIVAL_STEP == 0:
                self._counts.append(count)
                count = 0.0
            if progress is not None and index % 1000 == 0:
                progress(index / total)
        return self._outcome(total * STEP)

    # -- flows --------------------------------------------------------------------------------------------------------

    def _advance(self, index: int, now: float) -> None:
        newly = (self.phase == STARTING) & (self.ready_at <= now) if self._starting else None
        if newly is not None and newly.any():
            self.phase[newly] = READY
            self._refresh()
        arriving = float(self.flow.arrivals[index])
        prompt, output, context = (float(x[index]) for x in (self.flow.prompt, self.flow.output, self.flow.context))
        self._prompt, self._context = prompt, context
        step, profile = self.profile.step, self.profile
        if self._ready.size == 0:
            self._hold(now, arriving)
            share = np.zeros(0)
        else:
            share = self._spread(arriving + sum(count for _, count in self.held))
        active = self._active
        if active.size:
            running, queue = self.running[active], self.queue[active]
            if share.size:
                queue[: share.size] += share
            seats = min(profile.max_sequences, profile.capacity / (prompt + output + profile.page_size))
            fixed = step.base + running * (step.decode + step.kv * context)
            budget = np.maximum(1.0, profile.step_tokens - running)
            fastest = budget * STEP / ((fixed + step.prefill * budget) * prompt)
            first = np.minimum(np.minimum(queue, fastest), np.maximum(0.0, seats - running) + running * 0.02)
            steps = np.maximum(0.0, STEP - step.prefill * prompt * first) / fixed
            ended = running * -np.expm1(-steps / max(1.0, output - 1))
            # Sequences that begin in this step run for half of it in the mean.
            ended += first * -np.expm1(-steps / 2 / max(1.0, output - 1))
            running += first - ended
            left = queue - first
            if share.size:
                self._delays(now, share, left, first, steps, fixed)
            full = np.maximum(0.0, left - profile.max_queued)
            self.dropped += float(full.sum())
            self.running[active], self.queue[active] = running, left - full
            self.steps[active] += np.where(running + left > EMPTY, steps, 0.0)
            self.tokens[active] += first + running * steps
            done = float(ended.sum())
            self.served += done
            self.tokens_served += done * (prompt + output)
            self.concurrency += (float(running.sum()) + float(left.sum())) * STEP
            self._drain(active)
        self.concurrency += sum(count for _, count in self.held) * STEP
        bound = np.count_nonzero((self.phase >= STARTING) & (self.bound_at <= now)) if self._starting else active.size
        self.billed += bound * STEP * profile.accelerators

    def _spread(self, total: float) -> Floats:
        """The share of each ready replica. The least loaded replicas are filled first, up to one level."""
        load = self.running[self._ready] + self.queue[self._ready]
        below = np.ones(load.size, dtype=bool)
        level = 0.0
        for _ in range(8):
            level = (total + float(load[below].sum())) / int(below.sum())
            fewer = load < level
            if int(fewer.sum()) in (0, int(below.sum())):
                break
            below = fewer
        share = np.maximum(0.0, level - load)
        amount = float(share.sum())
        return np.asarray(share * (total / amount)) if amount > 0 else np.full(load.size, total / load.size)

    def _delays(self, now: float, share: Floats, left: Floats, first: Floats, steps: Floats, fixed: Floats) -> None:
        size, step, prompt = share.size, self.profile.step, self._prompt
        speed = np.maximum(first[:size], 1e-6) / STEP
        behind = np.where(left[:size] > 1e-3, left[:size] / speed, 0.0)
        own = prompt * step.prefill + fixed[:size] * (0.5 + math.ceil(prompt / self.profile.chunk_tokens))
        waited = behind + own
        pace = np.where(steps[:size] > 0, STEP / np.maximum(steps[:size], 1e-9), 60.0)
        weight = share
        if self.held:
            held = sum(count for _, count in self.held)
            for since, count in self.held:
                self.grid.count(waited + (now - since), pace, share * (count / float(share.sum())))
            weight = share * (1 - held / float(share.sum()))
            self.held.clear()
        self.grid.count(waited, pace, weight)
        self.firsts[self._ready] += weight
        self.delays[self._ready] += weight * waited
        arrived = float(weight.sum())
        if arrived > 0:
            self._recent.append((now, float(np.average(waited, weights=weight)), arrived))

    def _hold(self, now: float, arriving: float) -> None:
        held = sum(count for _, count in self.held)
        taken = min(arriving, max(0.0, self.setting.held - held)) if self.setting.hold else 0.0
        self.dropped += arriving - taken
        if taken:
            self.held.append((now, taken))
        while self.held and now - self.held[0][0] > self.setting.hold:
            self.dropped += self.held.popleft()[1]

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._ready = np.flatnonzero(self.phase == READY)
        self._active = np.concatenate([self._ready, np.flatnonzero(self.phase == DRAINING)])
        self._starting = int(np.count_nonzero((self.phase == STARTING) | (self.phase == PENDING)))

    def _drain(self, active: NDArray[np.intp]) -> None:
        if active.size > self._ready.size:
            going = active[self._ready.size :]
            gone = going[(self.running[going] + self.queue[going]) < EMPTY]
            if gone.size:
                self._free(gone)

    def _free(self, which: NDArray[np.intp]) -> None:
        # The remaining part of a sequence ends now, so that no work is lost.
        self.served += float((self.running[which] + self.queue[which]).sum())
        self.phase[which] = FREE
        self.running[which] = self.queue[which] = 0.0
        self.ready_at[which] = self.bound_at[which] = np.inf
        self._refresh()

    def _resize(self, desired: int, now: float) -> None:
        live = int(self._ready.size) + self._starting
        if live < desired:
            free = np.flatnonzero(self.phase == FREE)[: desired - live]
            self.phase[free] = PENDING
            self.created[free] = now
        elif live > desired:
            idle = np.flatnonzero((self.phase == STARTING) | (self.phase == PENDING))
            newest = idle[np.argsort(-self.created[idle], kind="stable")][: live - desired]
            self._free(newest)
            rest = live - desired - newest.size
            if rest > 0:
                load = self.running[self._ready] + self.queue[self._ready]
                keyed = load if self.scaler.removal is Removal.IDLEST else -self.ready_at[self._ready]
                self.phase[self._ready[np.argsort(keyed, kind="stable")][:rest]] = DRAINING
        self._bind(now)
        self._refresh()

    def _bind(self, now: float) -> None:
        pending = np.flatnonzero(self.phase == PENDING)
        if self.setting.quota is not None:
            bound = int(np.count_nonzero(self.phase >= STARTING))
            pending = pending[: max(0, self.setting.quota // self.profile.accelerators - bound)]
        if pending.size:
            startup = self.profile.startup
            spread = np.exp(self._random.normal(0.0, startup.sigma, (3, pending.size)))
            pull = np.where(self._random.random(pending.size) < startup.cached, 0.0, startup.pull * spread[1])
            self.phase[pending] = STARTING
            self.bound_at[pending] = now + startup.schedule * spread[0]
            self.ready_at[pending] = self.bound_at[pending] + pull + startup.load * spread[2]

    # -- scaling ------------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        bounds = self.setting.bounds
        decision = self.scaler.decide(self._view(now), self._memory, bounds)
        self._memory = decision.memory
        replicas = bounds.within(decision.replicas)
        if replicas != self._desired:
            self.events.append(ScaleEvent(now, self._desired, replicas))
            self._desired = replicas
        self._resize(replicas, now)
        for array in (self.steps, self.tokens, self.firsts, self.delays):
            array[:] = 0.0
        self.concurrency, self._looked = 0.0, now

    def _view(self, now: float) -> View:
        span = max(STEP, now - self._looked)
        ready = self._ready
        running, queue = self.running[ready], self.queue[ready]
        used = np.minimum(self.profile.pages, running * self._context / self.profile.page_size)
        newly = ready[self.ready_at[ready] > self._looked]
        while self._recent and self._recent[0][0] < now - TTFT_WINDOW:
            self._recent.popleft()
        late = np.array([(ttft, weight) for _, ttft, weight in self._recent]).reshape(-1, 2)
        stuck = int(np.count_nonzero(self.phase == PENDING)) if self._starting else 0
        return View(
            now=now,
            since=self._looked,
            desired=self._desired,
            sums=Sums(
                ready=int(ready.size),
                starting=self._starting,
                stuck=stuck,
                running=float(running.sum()),
                waiting=float(queue.sum()),
                unqueued=int(np.count_nonzero(queue < 0.5)),
                waiting_tokens=float(queue.sum()) * self._prompt,
                kv_pages_used=float(used.sum()),
                kv_pages_total=float(ready.size * self.profile.pages),
                busy=float(np.mean(-np.expm1(-running))) if ready.size else 0.0,
                preemptions=0.0,
                tokens=float(self.tokens[ready].sum()) / span,
            ),
            held=round(sum(count for _, count in self.held)),
            concurrency=self.concurrency / span,
            arrivals=tuple(count / ARRIVAL_STEP for count in self._counts),
            arrivals_end=now - now % ARRIVAL_STEP,
            ttft=_weighted(late, 0.95),
            startups=tuple((float(self.ready_at[i]), float(self.ready_at[i] - self.created[i])) for i in newly[:64]),
            slots=self.profile.max_sequences,
            look=lambda: self._pods(span),
        )

    def _pods(self, span: float) -> tuple[PodView, ...]:
        pods = []
        for i in np.flatnonzero(self.phase != FREE):
            phase = int(self.phase[i])
            running, queue = float(self.running[i]), float(self.queue[i])
            steps = float(self.steps[i])
            used = min(self.profile.pages, round(running * self._context / self.profile.page_size))
            pods.append(
                PodView(
                    name=f"pod-{i:05d}",
                    ready=phase == READY,
                    draining=phase == DRAINING,
                    created=float(self.created[i]),
                    ready_since=float(self.ready_at[i]) if phase in (READY, DRAINING) else None,
                    stuck=phase == PENDING,
                    load=EngineLoad(
                        running=round(running),
                        waiting=round(queue),
                        waiting_tokens=round(queue * self._prompt),
                        kv_pages_total=self.profile.pages,
                        kv_pages_free=self.profile.pages - used,
                        preemptions=0.0,
                        tokens=float(self.tokens[i]) / span,
                    ),
                    busy=-math.expm1(-running),
                    itl=span / steps if steps else None,
                    ttft=float(self.delays[i] / self.firsts[i]) if self.firsts[i] > 0 else None,
                )
            )
        return tuple(pods)

    def _mark(self, now: float) -> None:
        held = sum(count for _, count in self.held)
        active = self._active
        queue, running = held + float(self.queue[active].sum()), float(self.running[active].sum())
        self.timeline.append(Moment(now, int(self._ready.size), self._starting, self._desired, queue, running))

    def _outcome(self, seconds: float) -> Outcome:
        left = float(self.running.sum() + self.queue.sum()) + sum(count for _, count in self.held)
        arrived = float(self.flow.arrivals.sum())
        return Outcome(
            scaler=self.scaler.name,
            mode="fluid",
            seconds=seconds,
            requests=arrived,
            served=self.served,
            dropped=self.dropped,
            left=left,
            tokens=self.tokens_served,
            preemptions=0.0,
            accelerator_seconds=self.billed,
            latencies=self.grid.latencies(arrived - self.dropped),
            events=tuple(self.events),
            timeline=tuple(self.timeline),
        )


def _weighted(pairs: NDArray[Any], share: float) -> float | None:
    if not len(pairs):
        return None
    order = np.argsort(pairs[:, 0])
    reached = np.cumsum(pairs[order, 1])
    return float(pairs[order, 0][min(len(order) - 1, int(np.searchsorted(reached, share * reached[-1])))])
