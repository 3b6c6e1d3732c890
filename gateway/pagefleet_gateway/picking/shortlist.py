"""The pods that are scored for one request, where a revision has many. Pure.

Scoring takes microseconds for each pod, and a pick must not take milliseconds with a thousand. Some pods by lot find one that is
about as idle as the idlest (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001: the benefit
of each further choice falls fast), and those with the longest cached part of the prompt find its prefix.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.picking.prefixes import Prefixes

BY_LOT, BY_PREFIX = 12, 4


def shortlist(pods: Sequence[Pod], prefixes: Prefixes, blocks: Sequence[bytes], rng: random.Random) -> Sequence[Pod]:
    """Return the pods to score: all of a few, else BY_LOT of them by lot and BY_PREFIX with the longest cached prefix."""
    if len(pods) <= 2 * (BY_LOT + BY_PREFIX):
        return pods
    cached = prefixes.longest(pods, blocks, BY_PREFIX)
    if len(cached) > BY_PREFIX:
        cached = rng.sample(cached, BY_PREFIX)
    return list({pod.uid: pod for pod in (*cached, *rng.sample(pods, BY_LOT))}.values())
