"""The pods of one simulated revision: created, scheduled within a quota, pulled, loaded, ready, draining, gone.

This module decides which pods are deleted when there are too many; it never decides how many there should be. A pod is
billed from the moment it is bound to its accelerators until it is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from pagefleet_simulator.fleet.engine import Engine
from pagefleet_simulator.fleet.profile import Profile, Startup


class Phase(StrEnum):
    PENDING = "Pending"  # no accelerator is free, or the pod is not scheduled yet
    STARTING = "Starting"  # bound; it pulls the image and loads the model
    READY = "Ready"
    DRAINING = "Draining"
    GONE = "Gone"


class Pod:
    """`bound`, `ready_since` and `gone` are times in seconds; they are NaN before."""

    __slots__ = ("bound", "created", "engine", "gone", "index", "last_counters", "phase", "ready_since")

    def __init__(self, index: int, created: float, engine: Engine) -> None:
        self.index, self.created, self.engine = index, created, engine
        self.phase = Phase.PENDING
        self.bound = self.ready_since = self.gone = math.nan
        self.last_counters: tuple[float, ...] = ()  # at the scaler's last decision

    @property
    def serving(self) -> bool:
        return self.phase is Phase.READY

    def billed(self, now: float) -> float:
        """Billed seconds until now."""
        if math.isnan(self.bound):
            return 0.0
        return (now if math.isnan(self.gone) else min(now, self.gone)) - self.bound


class Removal(StrEnum):
    """The ready pods that are deleted first: the newest (a ReplicaSet without deletion costs) or the idlest."""

    NEWEST = "newest"
    IDLEST = "idlest"


@dataclass(frozen=True)
class PodRules:
    """`quota` is a number of accelerators, None without a limit."""

    quota: int | None = None
    removal: Removal = Removal.NEWEST
    prefix_caching: bool = True


class Pods:
    """The pods. `schedule` is called with (time, action) for later events, because the caller owns the clock."""

    def __init__(
        self,
        profile: Profile,
        random: np.random.Generator,
        schedule: Callable[[float, Callable[[float], None]], None],
        on_ready: Callable[[float], None],
        rules: PodRules,
    ) -> None:
        self.profile, self.rules = profile, rules
        self.all: list[Pod] = []
        self.live: list[Pod] = []  # pods that are neither draining nor gone, oldest first
        self.ready: list[Pod] = []
        self.draining: list[Pod] = []
        self.billed_before = 0.0  # accelerator seconds of pods that are gone
        self._random, self._schedule, self._on_ready = random, schedule, on_ready

    @property
    def bound(self) -> int:
        return sum(1 for pod in self.live if pod.phase is not Phase.PENDING) + len(self.draining)

    def billed(self, now: float) -> float:
        """Accelerator seconds until now."""
        seconds = sum(pod.billed(now) for pod in self.live) + sum(pod.billed(now) for pod in self.draining)
        return (seconds * self.profile.accelerators) + self.billed_before

    def warm(self, count: int) -> None:
        """Begin with this number of ready pods."""
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
        """A pod has no request left; a draining pod is gone then."""
        if pod.phase is Phase.DRAINING and pod.engine.in_flight == 0:
            self.draining.remove(pod)
            self._end(pod, now)
            self._bind(now)

    def _create(self, now: float) -> Pod:
        pod = Pod(len(self.all), now, Engine(self.profile, self.rules.prefix_caching))
        self.all.append(pod)
        self.live.append(pod)
        return pod

    def _bind(self, now: float) -> None:
        """Bind pending pods to free accelerators, the oldest pod first."""
        quota = self.rules.quota
        pending = [pod for pod in self.live if pod.phase is Phase.PENDING]
        free = len(pending) if quota is None else quota // self.profile.accelerators - self.bound
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
        """Delete first the pods that do not serve yet, the newest of them first, as the ReplicaSet controller does."""
        idle = sorted((pod for pod in self.live if not pod.serving), key=lambda pod: -pod.index)
        if self.rules.removal is Removal.IDLEST:
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
    """Seconds of scheduling, of the image's pull and of the model's load."""
    spread = np.exp(random.normal(0.0, startup.sigma, 3))
    pull = 0.0 if random.random() < startup.cached else startup.pull * spread[1]
    return float(startup.schedule * spread[0]), float(pull), float(startup.load * spread[2])
