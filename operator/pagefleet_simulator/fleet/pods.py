"""The pods of one simulated revision: created, scheduled within a quota, pulled, loaded, ready, draining, gone.

Decides which pod goes when there are too many; never how many there should be. A pod is billed from the moment it is
bound to its accelerators until it is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import numpy as np

from pagefleet_simulator.fleet.engine import Engine
from pagefleet_simulator.fleet.profile import Profile, Startup


class Phase(StrEnum):
    PENDING = "Pending"  # no accelerator is free, or the scheduler has not looked yet
    STARTING = "Starting"  # bound: pulls, loads
    READY = "Ready"
    DRAINING = "Draining"
    GONE = "Gone"


class Pod:
    """`bound`, `ready_since` and `gone` are seconds, NaN before."""

    __slots__ = ("bound", "created", "engine", "gone", "index", "phase", "ready_since", "seen")

    def __init__(self, index: int, created: float, engine: Engine) -> None:
        self.index, self.created, self.engine = index, created, engine
        self.phase = Phase.PENDING
        self.bound = self.ready_since = self.gone = math.nan
        self.seen: tuple[float, ...] = ()  # counters at the last look

    @property
    def serving(self) -> bool:
        return self.phase is Phase.READY

    def billed(self, now: float) -> float:
        """Seconds until now."""
        if math.isnan(self.bound):
            return 0.0
        return (now if math.isnan(self.gone) else min(now, self.gone)) - self.bound


class Victim(StrEnum):
    """Who goes first among ready pods: the newest (the ReplicaSet controller without deletion costs) or the idlest."""

    NEWEST = "newest"
    IDLEST = "idlest"


class Pods:
    """`schedule` is called with (time, action) for what is to happen later: the caller owns the clock."""

    def __init__(
        self,
        profile: Profile,
        random: np.random.Generator,
        schedule: Callable[[float, Callable[[float], None]], None],
        on_ready: Callable[[float], None],
        quota: int | None = None,
        victim: Victim = Victim.NEWEST,
        prefix_caching: bool = True,
    ) -> None:
        self.profile, self.quota, self.victim = profile, quota, victim
        self.all: list[Pod] = []
        self.live: list[Pod] = []  # all but those that are draining or gone, oldest first
        self.ready: list[Pod] = []
        self.draining: list[Pod] = []
        self.billed_before = 0.0  # accelerator seconds of pods that are gone
        self._random, self._schedule, self._on_ready = random, schedule, on_ready
        self._prefix_caching = prefix_caching

    @property
    def bound(self) -> int:
        return sum(1 for pod in self.live if pod.phase is not Phase.PENDING) + len(self.draining)

    def billed(self, now: float) -> float:
        """Accelerator seconds until now."""
        seconds = sum(pod.billed(now) for pod in self.live) + sum(pod.billed(now) for pod in self.draining)
        return (seconds * self.profile.accelerators) + self.billed_before

    def warm(self, count: int) -> None:
        """Begin with so many ready pods."""
        for _ in range(count):
            pod = self._create(0.0)
            pod.bound = pod.ready_since = 0.0
            pod.phase = Phase.READY
            self.ready.append(pod)

    def resize(self, desired: int, now: float) -> None:
        """Create or remove pods until `desired` are neither draining nor gone."""
        while len(self.live) < desired:
            self._create(now)
        if len(self.live) > desired:
            self._remove(len(self.live) - desired, now)
        self._bind(now)

    def emptied(self, pod: Pod, now: float) -> None:
        """A pod has no request left: if it drains, it is gone."""
        if pod.phase is Phase.DRAINING and pod.engine.in_flight == 0:
            self.draining.remove(pod)
            self._end(pod, now)
            self._bind(now)

    def _create(self, now: float) -> Pod:
        pod = Pod(len(self.all), now, Engine(self.profile, self._prefix_caching))
        self.all.append(pod)
        self.live.append(pod)
        return pod

    def _bind(self, now: float) -> None:
        """Give waiting pods the accelerators that are free, the oldest first."""
        pending = [pod for pod in self.live if pod.phase is Phase.PENDING]
        free = len(pending) if self.quota is None else self.quota // self.profile.accelerators - self.bound
        for pod in pending[: max(0, free)]:
            pod.phase = Phase.STARTING
            scheduled, pull, load = delays(self.profile.startup, self._random)
            pod.bound = now + scheduled
            self._schedule(now + scheduled + pull + load, partial(self._started, pod))

    def _started(self, pod: Pod, now: float) -> None:
        if pod.phase is Phase.STARTING:
            pod.phase, pod.ready_since = Phase.READY, now
            self.ready.append(pod)
            self._on_ready(now)

    def _remove(self, count: int, now: float) -> None:
        """Those that do not serve yet go first, the newest of them first: as the ReplicaSet controller does it."""
        idle = sorted((pod for pod in self.live if not pod.serving), key=lambda pod: -pod.index)
        if self.victim is Victim.IDLEST:
            serving = sorted(self.ready, key=lambda pod: (pod.engine.in_flight, pod.engine.used, -pod.index))
        else:
            serving = sorted(self.ready, key=lambda pod: (-pod.ready_since, -pod.index))
        for pod in [*idle, *serving][:count]:
            self.live.remove(pod)
            if pod.serving:
                self.ready.remove(pod)
            if pod.serving and pod.engine.in_flight:
                pod.phase = Phase.DRAINING
                self.draining.append(pod)
            else:
                self._end(pod, now)

    def _end(self, pod: Pod, now: float) -> None:
        pod.phase, pod.gone = Phase.GONE, now
        self.billed_before += max(0.0, pod.billed(now)) * self.profile.accelerators


def delays(startup: Startup, random: np.random.Generator) -> tuple[float, float, float]:
    """Seconds to be scheduled, to pull, to load."""
    spread = np.exp(random.normal(0.0, startup.sigma, 3))
    pull = 0.0 if random.random() < startup.cached else startup.pull * spread[1]
    return float(startup.schedule * spread[0]), float(pull), float(startup.load * spread[2])
