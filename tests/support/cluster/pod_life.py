"""The lives of pods by a seed: how long they take to start, and when they crash, run out of memory or get evicted. Pure: what a
pod is at an age follows from the seed and the pod's number."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import Enum


class End(Enum):
    """What ends a container, or with EVICTED the pod, as the kubelet words it."""

    CRASH = "Error"
    OUT_OF_MEMORY = "OOMKilled"
    EVICTED = "Evicted"


@dataclass(frozen=True)
class PodState:
    """`ends` are what has ended the pod's container so far, oldest first; after EVICTED nothing follows."""

    ready: bool
    ends: tuple[End, ...] = ()

    @property
    def evicted(self) -> bool:
        return bool(self.ends) and self.ends[-1] is End.EVICTED


@dataclass(frozen=True)
class Life:
    """Seconds until Ready are lognormal with `start` as median and `spread` as the logarithm's standard deviation. A Ready
    pod lasts `lasts` seconds on average (exponential); a container is back after `back` seconds, and later each time."""

    seed: int
    start: float = 2.0
    spread: float = 0.5
    lasts: float = 60.0
    back: float = 1.0
    kinds: tuple[End, ...] = tuple(End)

    def at(self, number: int, age: float) -> PodState:
        """Return the state of the pod with this number at this age in seconds."""
        chance = random.Random(f"{self.seed}-{number}")
        ends: tuple[End, ...] = ()
        until = self.start * math.exp(chance.gauss(0.0, self.spread))
        while age >= until:
            until += chance.expovariate(1 / self.lasts)
            if age < until:
                return PodState(True, ends)
            ends += (chance.choice(self.kinds),)
            if ends[-1] is End.EVICTED:
                break
            until += self.back * len(ends)
        return PodState(False, ends)
