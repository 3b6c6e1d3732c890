"""Which pods a request may meet, best first: least loaded, random among equals. Never chooses a revision."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from .state import Pod


def order(
    pods: Sequence[Pod],
    load: Callable[[Pod], float],
    ejected: Callable[[Pod], bool],
    count: int,
    rng: random.Random,
) -> list[Pod]:
    """Up to `count` pods by (ejected, load, random): a pod that failed a moment ago comes only after the
    others.
    """
    return heapq.nsmallest(count, pods, key=lambda pod: (ejected(pod), load(pod), rng.random()))


def candidates(own: Sequence[Pod], other: Sequence[Pod], attempts: int) -> list[Pod]:
    """The ordered choices for `attempts` tries: other pods of the revision, else of another one, else again
    the same.

    The list is as long as the attempts, because Envoy has no further host to try once it is used up.
    """
    chosen = list(own[:attempts])
    chosen.extend(other[: attempts - len(chosen)])
    return [chosen[index % len(chosen)] for index in range(attempts)] if chosen else []
